"""The runs of these tests once more, kept in other ways: in segments, in a store, or both."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rolltape.storage import has_segments, segmented, storage_at
from tests.cli_tapes import run
from tests.compacting import folded

__all__ = ["_own_spool", "place"]

KEPT = ["folded", "in a store", "folded in a store"]


@pytest.fixture(autouse=True)
def _own_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLTAPE_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setattr(segmented, "FRESH", 0.05)
    monkeypatch.setattr(segmented, "GRACE", 0.15)


@pytest.fixture
def place(runs: Path, s3_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A copy of both runs, kept in one of the ways."""
    kept = request.param
    folder = s3_url if "store" in kept else str(tmp_path / "runs")
    for name in ("base", "packed"):
        tape = f"{folder}/{name}"
        if "store" in kept:
            assert run("push", runs / name, tape).exit_code == 0
        else:
            shutil.copytree(runs / name, tape)
        if "folded" in kept:
            folded(tape)
            assert has_segments(storage_at(tape))
    return folder
