"""A spool in which somebody put what does not belong there: nothing is followed out of it, nothing is waited
for, and what is no entry is named and left, while all others are taken to the store."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rolltape.cli import main
from rolltape.errors import StorageError
from rolltape.storage.spool import Session, Spool

URL = "s3://bucket/runs/a"
STEP = "train/rollout/step_000000.parquet"


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "spool"), 2**30)


@pytest.fixture
def left(spool: Spool) -> Path:
    """A session of a process that is gone, with one entry."""
    session = spool.begin(URL)
    session.add("publish", STEP, [b"12345"], attempt="0" * 32)
    session.end()
    return Path(session.folder)


def entry(folder: Path, number: int, body: bytes = b"12345", **said: Any) -> Path:
    node = {"do": "publish", "name": STEP, "attempt": "1" * 32, "replace": False, "size": 5} | said
    file = folder / f"{number:020d}.entry"
    file.write_bytes(json.dumps(node).encode() + b"\n" + body)
    return file


def taken(spool: Spool) -> list[str]:
    sessions = spool.left_behind(URL)
    try:
        return [found.attempt[:1] for session in sessions for found in session.entries()]
    finally:
        for session in sessions:
            session.end()


def holes(folder: Path) -> None:
    file = entry(folder, 7, size=2**43)
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 5 + 2**43)


def link(folder: Path) -> None:
    (folder / f"{7:020d}.entry").symlink_to(entry(folder.parent, 8))


PLANTED: dict[str, Callable[[Path], Any]] = {
    "no JSON": lambda folder: (folder / f"{7:020d}.entry").write_bytes(b"x" * 100_000),
    "deep JSON": lambda folder: (folder / f"{7:020d}.entry").write_bytes(b"[" * 60_000 + b"\n"),
    "a number of 6,000 digits": lambda folder: (folder / f"{7:020d}.entry").write_bytes(
        b'{"size":' + b"9" * 6000 + b"}\n"
    ),
    "nothing": lambda folder: (folder / f"{7:020d}.entry").touch(),
    "a list": lambda folder: (folder / f"{7:020d}.entry").write_bytes(b"[]\n"),
    "a name that leads out": lambda folder: entry(folder, 7, name="../../other/step_000000.parquet"),
    "an absolute name": lambda folder: entry(folder, 7, name="/etc/passwd"),
    "a name of no text": lambda folder: entry(folder, 7, name=["x"]),
    "a size below zero": lambda folder: entry(folder, 7, size=-1),
    "a size above what is there": lambda folder: entry(folder, 7, size=10**12),
    "a size that is cut": lambda folder: entry(folder, 7, body=b"123"),
    "a size of no number": lambda folder: entry(folder, 7, size="5"),
    "something unknown to do": lambda folder: entry(folder, 7, do="execute"),
    "an attempt with lines": lambda folder: entry(folder, 7, attempt="a\r\nx-evil: 1"),
    "a line without its key": lambda folder: entry(folder, 7, do="line", name="train/metrics.jsonl"),
    "a line of a recording": lambda folder: entry(
        folder, 7, do="line", attempt=f"line-{1:016x}-{1:016x}-{1:08x}"
    ),
    "a pipe": lambda folder: os.mkfifo(folder / f"{7:020d}.entry"),
    "a folder": lambda folder: (folder / f"{7:020d}.entry").mkdir(),
    "a link": link,
    "holes": holes,
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_one_bad_entry_stops_no_other(
    spool: Spool, left: Path, plant: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    plant(left)
    entry(left, 9, attempt="2" * 32)
    with caplog.at_level(logging.WARNING):
        assert sorted(taken(spool)) == ["0", "2"]
    if plant is not PLANTED["a folder"]:
        assert f"{7:020d}.entry" in caplog.text
    assert os.path.lexists(left / f"{7:020d}.entry"), "what is not ours stays"


def test_a_link_to_the_session_of_another_tape_is_not_taken_over(spool: Spool, left: Path) -> None:
    other = spool.begin("s3://bucket/runs/b")
    other.add("publish", STEP, [b"theirs"], attempt="9" * 32)
    other.end()
    (left.parent / "linked").symlink_to(other.folder)
    assert taken(spool) == ["0"]
    assert spool.waiting()[URL].files == 1


def test_the_folder_of_another_tape_in_its_place_is_refused(spool: Spool, left: Path) -> None:
    there = spool.folder_of("s3://bucket/runs/b")
    os.rename(left.parent, there)
    for ask in (spool.left_behind, spool.begin):
        with pytest.raises(StorageError, match="not of this tape") as caught:
            ask("s3://bucket/runs/b")
        assert caught.value.where == there
    assert spool.waiting() == {}
    os.rename(there, left.parent.parent / "kept")
    Path(there).symlink_to(left.parent.parent / "kept")
    with pytest.raises(StorageError, match="not of this tape"):
        spool.begin("s3://bucket/runs/b")


@pytest.mark.parametrize("kind", ["a link", "a dangling link", "a pipe", "a folder"])
def test_what_lies_in_the_place_of_a_lock_is_not_opened(spool: Spool, left: Path, kind: str) -> None:
    outside = left.parent.parent / "outside"
    (left / "lock").unlink()
    if kind == "a link":
        outside.write_text("mine")
    {
        "a link": lambda: (left / "lock").symlink_to(outside),
        "a dangling link": lambda: (left / "lock").symlink_to(outside),
        "a pipe": lambda: os.mkfifo(left / "lock"),
        "a folder": lambda: (left / "lock").mkdir(),
    }[kind]()
    assert spool.left_behind(URL) == []
    assert outside.exists() == (kind == "a link")


def test_nothing_is_deleted_through_a_link_when_a_session_ends(spool: Spool, left: Path) -> None:
    outside = left.parent.parent / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (session,) = spool.left_behind(URL)
    for found in session.entries():
        session.remove(found)
    for name in os.listdir(left / ".tmp") if (left / ".tmp").exists() else []:
        (left / ".tmp" / name).unlink()
    if (left / ".tmp").exists():
        (left / ".tmp").rmdir()
    (left / ".tmp").symlink_to(outside)
    session.end()
    assert (outside / "mine").read_text() == "mine"


@pytest.mark.parametrize("kind", ["a pipe", "no text", "gigabytes", "a link to a device", "another tape"])
def test_a_url_that_is_none_is_not_waited_for(spool: Spool, left: Path, kind: str) -> None:
    url = left.parent / "url"
    url.unlink()
    if kind == "a pipe":
        os.mkfifo(url)
    elif kind == "gigabytes":
        with url.open("wb") as file:
            file.truncate(2**42)
    elif kind == "a link to a device":
        url.symlink_to("/dev/zero")
    else:
        url.write_bytes(b"\xff\xfe" if kind == "no text" else b"s3://evil/\x1b[2Jx")
    assert spool.waiting() == {}
    if kind != "another tape":
        assert isinstance(spool.begin(URL), Session)


def test_drain_goes_on_where_a_folder_names_no_store(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLTAPE_SPOOL", spool.root)
    odd = ["ftp://\x1b[2Jnowhere/x", "s3://", "file:///etc", "x://\n::error::x"]
    for url in odd:
        session = spool.begin(url)
        session.add("publish", STEP, [b"x"], attempt="3" * 32)
        session.end()
    assert sorted(spool.waiting()) == sorted(odd)
    done = CliRunner().invoke(main, ["drain"])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 1
    assert "\x1b[2J" not in done.output
    assert not any(line.startswith("::") for line in done.output.splitlines())
    for said in ("nowhere/x", "s3://", "file:///etc", "error::x"):
        assert said in done.output
