"""A directory keeps what every storage promises."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.errors import KeyNameError
from rolltape.storage import LocalStorage, check_name, check_prefix
from tests.storage_contract import *  # noqa: F403
from tests.storage_contract import Make


@pytest.fixture
def make_storage(tmp_path: Path) -> Iterator[Make]:
    numbers = count()
    yield lambda: LocalStorage(tmp_path / "runs" / f"tape{next(numbers)}")
    assert {entry.name for entry in tmp_path.iterdir()} <= {"runs"}


@given(st.text("ab./\\\0\n\x7fé\ud800", max_size=12))
def test_a_name_that_passes_stays_inside(name: str) -> None:
    try:
        check_name(name)
    except KeyNameError:
        return
    assert check_prefix(f"{name}/") == f"{name}/"
    parts = name.encode().split(b"/")
    assert all(part and not part.startswith(b".") and b"\0" not in part for part in parts)
