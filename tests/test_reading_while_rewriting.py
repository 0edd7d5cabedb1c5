"""A step that is rewritten while it is read: the old one or the new one, whole, and never damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.key import Key
from rolltape.storage import LocalStorage
from rolltape.tape.recording import Recording


def write(folder: Path, number: int, mode: str = "rewrite") -> None:
    with rolltape.Tape(folder, mode=mode, background=False) as tape, tape.step(0):
        noise = np.random.default_rng(number).random((50, 40 + number))
        tape.stage("rollout")(
            lambda: {"a": np.full((50, 7), number), "b": noise, "uid": [str(number)] * 50}
        )()


class Rewritten(LocalStorage):
    """A tape whose step is rewritten just before some of the reads."""

    def __init__(self, root: Path, times: int) -> None:
        super().__init__(root)
        self.times = times

    def read_end(self, name: str, length: int, whole: int = 0) -> Any:
        self._rewrite(name)
        return super().read_end(name, length, whole)

    def read_ranges(self, name: str, spans: Any, revision: str | None = None) -> Any:
        self._rewrite(name)
        return super().read_ranges(name, spans, revision)

    def _rewrite(self, name: str) -> None:
        if self.times and name.endswith(".parquet"):
            self.times -= 1
            write(Path(self.location), self.times + 1)


@pytest.mark.parametrize("times", [1, 2, 3, 5])
def test_a_partial_read_is_of_one_recording(tmp_path: Path, times: int) -> None:
    write(tmp_path / "t", 0, "record")
    recording = Recording(Rewritten(tmp_path / "t", times), Key(step=0))
    batch = recording.batch(["a", "b"], slice(10, 20))
    number = int(np.asarray(batch["a"])[0, 0])
    assert np.asarray(batch["b"]).shape == (10, 40 + number)
    assert set(recording.identity()[0]) == {str(number)}


def test_one_opened_before_and_read_after_is_read_again(tmp_path: Path) -> None:
    write(tmp_path / "t", 0, "record")
    recording = Recording(LocalStorage(tmp_path / "t"), Key(step=0))
    assert recording.samples == 50
    write(tmp_path / "t", 3)
    assert np.asarray(recording.batch(["b"])["b"]).shape == (50, 43)
    recording.verify()


def test_one_that_is_never_still_says_so(tmp_path: Path) -> None:
    write(tmp_path / "t", 0, "record")
    with pytest.raises(rolltape.StorageError, match="replaced while it was read"):
        Recording(Rewritten(tmp_path / "t", 1000), Key(step=0)).batch(["b"])
