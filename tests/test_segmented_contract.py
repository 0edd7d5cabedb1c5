"""Files that are parts of segments keep what every storage promises."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rolltape.storage import LocalStorage, SegmentedStorage
from rolltape.storage.segment_index import Segment
from tests.storage_contract import *  # noqa: F403
from tests.storage_contract import Make

_numbers = count()


class Folding(SegmentedStorage):
    """Folds every file as soon as it is published, behind some other bytes."""

    def publish(self, name: str, chunks: Sequence[Any], *, replace: bool) -> int:
        size = super().publish(name, chunks, replace=replace)
        if name.count("/") == 2 and name.endswith(".parquet"):
            data = bytes(self.files.read(name))
            above = name.rpartition("/")[0]
            segment = f"{above}/segment_000000-000000.1800000000-{next(_numbers):09d}.parquet"
            self.files.publish(segment, [b"before", data, b"after"], replace=False)
            made = Segment(segment, size + 11, size, "")
            self.change(lambda index: index.with_segment(made, {name: (6, size)}))
            self.files.delete(name)
        return size


@pytest.fixture(params=[SegmentedStorage, Folding])
def make_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    numbers = count()
    return lambda: request.param(LocalStorage(tmp_path / f"tape{next(numbers)}"))
