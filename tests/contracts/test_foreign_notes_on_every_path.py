"""Metrics and notes of another tape, or of another split, are refused on every way of reading; nothing of
them is shown, and what is copied, cut or accepted has none of it. Those of older versions, which do not say
whose they are, are read, and `check` says that no more can be known.
"""

from __future__ import annotations

import json
import shutil
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.copying import carrying, planning
from rolltape.errors import MisplacedFileError, RolltapeError
from rolltape.pytest_plugin import assert_matches_tape
from rolltape.reader.acceptances import acceptances
from rolltape.reader.dropped_steps import Dropped, note_dropped, read_dropped
from rolltape.reader.integrity import inspect
from rolltape.storage import LocalStorage
from rolltape.tape.checked_lines import checked_line
from rolltape.tape.current_run import current_run
from rolltape.tape.replayed import read_replayed
from rolltape.tape.sessions import live_sessions
from rolltape.tape_repair import repair
from rolltape.verify.rules.noise_floor import Floor, read_floor, write_floor
from tests.cli_tapes import run
from tests.contracts.test_misplaced_on_every_path import record

METRICS = "train/metrics.jsonl"
NOTES = ["runs.jsonl", "noise.json", "accepted.jsonl", "replayed.jsonl", "dropped.jsonl"]


def with_notes(folder: Path) -> Path:
    """A tape that has every kind of note, and metrics of two splits."""
    record(folder)
    storage = LocalStorage(folder)
    write_floor(storage, Floor(2, f"MARK-{folder.name}", ("x",), {("metrics", "loss"): 1e9}))
    with rolltape.Tape(folder, mode="replay", out=folder.parent / f"{folder.name}-out") as tape:
        shown = tape.stage("rollout", inputs=False)(lambda: None)
        with tape.step(0):
            for _ in range(2):
                shown()
            tape.log({"loss": 0.0})
    tape_id = rolltape.open(folder).id
    shutil.copy(folder.parent / f"{folder.name}-out/replayed.jsonl", folder / "replayed.jsonl")
    text = (folder / "replayed.jsonl").read_text()
    theirs = rolltape.open(folder.parent / f"{folder.name}-out").id
    (folder / "replayed.jsonl").write_text(text.replace(theirs, tape_id))
    note_dropped(storage, Dropped("7", "train", "rollout"), tape_id)
    line = {"author": f"MARK-{folder.name}", "reason": "r", "before": "b", "candidate": "c", "verdict": "v"}
    storage.append("accepted.jsonl", json.dumps(line | {"tape": tape_id}).encode())
    return folder


@pytest.fixture(scope="module")
def tapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    for name in ("mine", "other", "third"):
        with_notes(folder / name)
    return folder


@pytest.fixture
def mine(tapes: Path, tmp_path: Path) -> Path:
    for name in ("mine", "third"):
        shutil.copytree(tapes / name, tmp_path / name)
    return tmp_path / "mine"


READERS: dict[str, Callable[[Path], Any]] = {
    "runs.jsonl": lambda tape: [current_run(LocalStorage(tape)), live_sessions(LocalStorage(tape), 2)],
    "noise.json": lambda tape: read_floor(LocalStorage(tape)),
    "accepted.jsonl": lambda tape: acceptances(LocalStorage(tape)),
    "replayed.jsonl": lambda tape: read_replayed(LocalStorage(tape)),
}


def test_each_tape_has_all_of_them_and_they_are_its_own(mine: Path) -> None:
    assert [name for name in NOTES if not (mine / name).exists()] == []
    for read in READERS.values():
        assert read(mine)
    assert read_dropped(LocalStorage(mine))
    report = inspect(LocalStorage(mine))
    assert report.findings == []
    assert report.unsigned == []


@pytest.mark.parametrize("name", READERS)
def test_a_note_of_another_tape_is_refused(mine: Path, tapes: Path, name: str) -> None:
    shutil.copy(tapes / "other" / name, mine / name)
    with pytest.raises(MisplacedFileError, match=name):
        READERS[name](mine)
    assert [(f.kind, f.file) for f in inspect(LocalStorage(mine)).findings] == [("misplaced", name)]


def test_what_another_tape_dropped_was_not_dropped_here(mine: Path, tapes: Path) -> None:
    shutil.copy(tapes / "other/dropped.jsonl", mine / "dropped.jsonl")
    assert read_dropped(LocalStorage(mine)) == []
    assert [f.file for f in inspect(LocalStorage(mine)).findings] == ["dropped.jsonl"]


def one_line_of(tape: Path, name: str) -> Callable[[Path], None]:
    """A single line of another file among its own."""

    def act(mine: Path) -> None:
        line = (tape / name).read_bytes().splitlines()[1]
        (mine / METRICS).write_bytes((mine / METRICS).read_bytes() + line + b"\n")

    return act


def whole(tape: Path, name: str) -> Callable[[Path], None]:
    return lambda mine: (mine / METRICS).write_bytes((tape / name).read_bytes())


def planted(kind: str, tapes: Path, mine: Path) -> str:
    """Plant it, and say what must not be seen."""
    plant, mark = {
        "of another tape": (whole(tapes / "other", METRICS), "MARK-other-train-metrics"),
        "of another split": (whole(mine, "val/metrics.jsonl"), "MARK-mine-val-metrics"),
        "a line of another tape": (one_line_of(tapes / "other", METRICS), "MARK-other-train-metrics"),
        "a line of another split": (one_line_of(mine, "val/metrics.jsonl"), "MARK-mine-val-metrics"),
        "of another tape and split": (whole(tapes / "other", "val/metrics.jsonl"), "MARK-other-val-metrics"),
    }[kind]
    plant(mine)
    return mark


KINDS = [
    "of another tape", "of another split", "a line of another tape", "a line of another split",
    "of another tape and split",
]  # fmt: skip


def said(ask: Callable[[], Any]) -> str:
    try:
        return repr(ask())
    except RolltapeError as error:
        return str(error)


def replayed(mine: Path) -> Any:
    with rolltape.Tape(mine, mode="replay") as tape:
        return tape.metrics()


def command(*words: object) -> str:
    done = run(*words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.stdout + done.stderr


def copied(mine: Path) -> Any:
    there = LocalStorage(mine.parent / "copy")
    return carrying.carry_out(planning.plan_copy(LocalStorage(mine), there))


def mended(mine: Path) -> Any:
    """A tape that lost its metrics is mended from the planted one: they are not fetched."""
    lost = mine.parent / "lost"
    shutil.copytree(mine, lost)
    (lost / METRICS).write_bytes(b"damaged\n")
    repair(LocalStorage(lost), LocalStorage(mine))
    return "metrics.jsonl" if b"MARK" not in (lost / METRICS).read_bytes() else (lost / METRICS).read_bytes()


def own_tests(mine: Path) -> Any:
    """What a test of a trainer does with the fixtures of the pytest plugin."""
    with rolltape.Tape(mine, mode="replay", out=mine.parent / "candidate", background=False) as tape:
        shown = tape.stage("rollout", inputs=False)(lambda: None)
        with tape.step(0):
            for _ in range(2):
                shown()
            tape.log({"loss": 0.25})
        return assert_matches_tape(tape)


WAYS: dict[str, Callable[[Path], Any]] = {
    "pytest plugin": own_tests,
    "run.metrics": lambda mine: rolltape.open(mine).metrics("train"),
    "run.metrics, with damage": lambda mine: _and_damage(mine),
    "run.metrics_by_rank": lambda mine: rolltape.open(mine).metrics_by_rank("train"),
    "tape.metrics": replayed,
    "check": lambda mine: inspect(LocalStorage(mine)).findings,
    "compare": lambda mine: rolltape.compare(mine, mine.parent / "third"),
    "compare, the other way": lambda mine: rolltape.compare(mine.parent / "third", mine),
    "rolltape check": lambda mine: command("check", mine),
    "rolltape diff": lambda mine: command("diff", mine, mine.parent / "third", "--json"),
    "rolltape cut": lambda mine: command("cut", mine, "--steps", "0-9", "--out", mine.parent / "cut"),
    "rolltape redact": lambda mine: command("redact", mine, "--out", mine.parent / "cut"),
    "rolltape accept": lambda mine: command(
        "accept", mine, "--as", mine.parent / "third", "--reason", "r", "--author", "a"
    ),
    "rolltape push": lambda mine: command("push", mine, mine.parent / "copy"),
    "copy": copied,
    "repair --from": mended,
}


def _and_damage(mine: Path) -> Any:
    damaged: list[RolltapeError] = []
    return rolltape.open(mine).metrics("train", 0, damaged), [str(error) for error in damaged]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_metrics_of_elsewhere_are_refused_by_name(mine: Path, tapes: Path, kind: str, way: str) -> None:
    mark = planted(kind, tapes, mine)
    before = {file: file.read_bytes() for file in mine.parent.rglob("*metrics.jsonl")}
    seen = said(lambda: WAYS[way](mine))
    assert mark not in seen
    assert "metrics.jsonl" in seen, seen[:500]
    for file in mine.parent.rglob("train/*metrics.jsonl"):
        if before.get(file) != file.read_bytes() and "lost" not in file.parts:
            assert mark.encode() not in file.read_bytes(), file


REPLAYS = """
import rolltape
with rolltape.Tape.from_env() as tape:
    shown = tape.stage("rollout", inputs=False)(lambda: None)
    with tape.step(0):
        shown(), shown()
        tape.log({"loss": 0.25})
"""


@pytest.mark.parametrize("kind", ["of another tape", "a line of another split", "noise.json"])
def test_noise_is_not_measured_against_them(mine: Path, tapes: Path, kind: str) -> None:
    if kind == "noise.json":
        shutil.copy(tapes / "other/noise.json", mine / kind)
        mark, name = "MARK-other", kind
    else:
        mark, name = planted(kind, tapes, mine), "metrics.jsonl"
    before = (mine / "noise.json").read_bytes()
    seen = command("noise", mine, "--runs", "1", "--", sys.executable, "-c", REPLAYS)
    assert mark not in seen
    assert name in seen, seen[:500]
    assert (mine / "noise.json").read_bytes() == before


@pytest.mark.parametrize("name", ["runs.jsonl", "noise.json", "accepted.jsonl"])
def test_the_pytest_plugin_refuses_notes_of_another_tape(mine: Path, tapes: Path, name: str) -> None:
    shutil.copy(tapes / "other" / name, mine / name)
    seen = said(lambda: own_tests(mine))
    assert "MARK-other" not in seen
    assert name in seen, seen[:500]


def test_repair_takes_them_out_or_fetches_the_right_ones(mine: Path, tapes: Path) -> None:
    planted("a line of another tape", tapes, mine)
    (mine / "noise.json").write_bytes((tapes / "other/noise.json").read_bytes())
    there = repair(LocalStorage(mine), LocalStorage(tapes / "mine"))
    assert sorted(there.fetched) == ["noise.json", METRICS]
    assert (mine / METRICS).read_bytes() == (tapes / "mine" / METRICS).read_bytes()
    assert inspect(LocalStorage(mine)).findings == []

    planted("a line of another tape", tapes, mine)
    (mine / "noise.json").write_bytes((tapes / "other/noise.json").read_bytes())
    assert repair(LocalStorage(mine), drop=True).lines == 2
    assert (mine / METRICS).read_bytes() == (tapes / "mine" / METRICS).read_bytes()
    assert not (mine / "noise.json").exists()
    assert inspect(LocalStorage(mine)).findings == []


def as_older(text: bytes) -> bytes:
    """The lines as an older version wrote them."""
    lines = []
    for line in text.splitlines():
        node = json.loads(line)
        node = {key: value for key, value in node.items() if key not in ("tape", "split")}
        was_checked = node.pop("crc", None), node.pop("bytes", None)
        lines.append(checked_line(node) if was_checked[0] else json.dumps(node).encode())
    return b"\n".join(lines) + b"\n"


def test_older_ones_are_read_and_check_says_that_no_more_can_be_known(mine: Path) -> None:
    logged = rolltape.open(mine).metrics()
    for name in (METRICS, "runs.jsonl", "replayed.jsonl", "accepted.jsonl"):
        (mine / name).write_bytes(as_older((mine / name).read_bytes()))
    floor = json.loads((mine / "noise.json").read_bytes())
    del floor["tape"]
    (mine / "noise.json").write_text(json.dumps(floor))
    assert rolltape.open(mine).metrics() == logged
    for read in READERS.values():
        assert read(mine)
    report = inspect(LocalStorage(mine))
    assert report.findings == []
    names = ["accepted.jsonl", "noise.json", "replayed.jsonl", "runs.jsonl", METRICS]
    assert sorted(report.unsigned) == sorted(names)
    said = run("check", mine)
    assert said.exit_code == 0
    assert "nothing in it says of which tape it is" in " ".join(said.stderr.split())


def test_a_tape_that_goes_by_another_id_now_keeps_what_it_has(mine: Path) -> None:
    """Acceptance gives a baseline a new id; a cut is a tape of its own; tape.json can be made anew."""
    assert "MARK" in said(lambda: rolltape.open(mine).metrics())
    assert run("accept", mine, "--as", mine.parent / "third", "--reason", "r", "--author", "a").exit_code == 0
    for tape in (mine.parent / "third", mine.parent / "cut"):
        if not tape.exists():
            assert run("cut", mine, "--steps", "0-1", "--out", tape).exit_code == 0
        for _ in range(2):
            assert "MARK-mine-train-metrics-1" in said(lambda tape=tape: rolltape.open(tape).metrics())
            assert inspect(LocalStorage(tape)).findings == []
            (tape / "tape.json").unlink()
            assert repair(LocalStorage(tape)).made


def test_a_line_that_says_its_tape_in_no_text_is_refused(mine: Path) -> None:
    for tape in (7, ["x"], {"a": 1}, True, "", "x" * 10_000):
        body = json.dumps({"step": 0, "tape": tape, "split": "train", "metrics": {}}).encode()[1:]
        line = b'{"crc":"%08x","bytes":%d,' % (zlib.crc32(body), len(body)) + body + b"\n"
        (mine / METRICS).write_bytes(line)
        with pytest.raises(MisplacedFileError, match=r"metrics\.jsonl, line 1"):
            rolltape.open(mine).metrics()
