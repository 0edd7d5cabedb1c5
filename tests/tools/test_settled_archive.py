"""The source archive of a release has the same bytes whoever builds it, and whenever."""

from __future__ import annotations

import importlib
import os
import sys
import tarfile
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def test_the_same_files_give_the_same_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("setuptools")
    monkeypatch.syspath_prepend(str(TOOLS))
    backend = importlib.import_module("backend")
    made = []
    for number, names in enumerate((["a.py", "b.py"], ["b.py", "a.py"])):
        folder = tmp_path / str(number) / "pkg"
        folder.mkdir(parents=True)
        archive = tmp_path / f"{number}.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            for name in names:
                (folder / name).write_text(name)
                os.utime(folder / name, (number * 1000, number * 1000))
                tar.add(folder / name, f"pkg/{name}")
        backend.settle(str(archive), 1_700_000_000)
        made.append(archive.read_bytes())
    assert made[0] == made[1]
    with tarfile.open(tmp_path / "0.tar.gz") as tar:
        assert {member.name: tar.extractfile(member).read() for member in tar} == {
            "pkg/a.py": b"a.py",
            "pkg/b.py": b"b.py",
        }
        assert {member.mtime for member in tar.getmembers()} == {1_700_000_000}
    sys.modules.pop("backend", None)
