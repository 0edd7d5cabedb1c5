"""A file that is not what its name says is refused on every way of reading a tape; nothing of it is shown.

Every recording holds a mark that says where it belongs. Files are put where others belong; then each way of
reading is asked, in all the places it could show something. What it says may name the file, and must not
contain a mark of what was put there.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.errors import RolltapeError
from rolltape.key import Key
from rolltape.reader.integrity import inspect
from rolltape.storage import LocalStorage
from rolltape.tape_repair import repair
from tests.cli_tapes import run

STEPS = range(3)
SHARD = "train/shard/step_000001.r0of2.parquet"
ROLLOUT = "train/rollout/step_000001.parquet"


def mark(tape: str, key: Key) -> str:
    kind = "in" if key.inputs else "out"
    return f"MARK-{tape}-{key.split}-{key.stage}-{key.step}-c{key.call}-r{key.rank}-{kind}-KRAM"


def batch(text: str, step: int) -> dict[str, Any]:
    return {
        "uid": ["a", "b"], "response": [text, text], "reward": np.array([step, step + 0.5]),
        "prompt": ["p", "q"], "meta": {"note": text},
    }  # fmt: skip


def record(folder: Path) -> Path:
    """A tape with two splits, three stages, two calls, inputs, shards and metrics."""
    name = folder.name
    for split in ("train", "val"):
        for rank in (0, 1):
            shards = {"rank": rank, "world_size": 2}
            with rolltape.Tape(folder, mode="record", split=split, **shards) as tape:
                _record(tape, name, ["shard"], split, rank)
        with rolltape.Tape(folder, mode="record", split=split) as tape:
            _record(tape, name, ["rollout", "reward"], split, 0)
    return folder


def _record(tape: rolltape.Tape, name: str, stages: list[str], split: str, rank: int) -> None:
    for stage in stages:
        shared = Key(split=split, stage=stage, step=0, rank=rank, world_size=2 if stage == "shard" else 1)

        def result(given: Any, step: int, call: int, shared: Key = shared) -> Any:
            return batch(mark(name, replace(shared, step=step, call=call)), step)

        call_it = tape.stage(stage, inputs=["given"])(result)
        for step in STEPS:
            with tape.step(step):
                for call in (0, 1):
                    given = mark(name, replace(shared, step=step, call=call, inputs=True))
                    call_it({"uid": ["a", "b"], "prompt": [given] * 2}, step, call)
                tape.log({"loss": step + 0.25, "said": f"MARK-{name}-{split}-metrics-{step}-KRAM"})


@dataclass
class Planted:
    """A tape on which a file lies where another belongs."""

    tape: Path
    place: str
    """Where it lies."""
    marks: list[str] = field(default_factory=list)
    """What must not be seen: what was put there, and what no longer lies where it belongs."""
    out: Path = Path()
    """Where a way of reading may write; not there yet."""

    @property
    def key(self) -> Key:
        key = Key.parse(self.place)
        assert key is not None
        return key


Plant = Callable[[Path, Path], Planted]


def _mark(tape: Path, name: str) -> str:
    key = Key.parse(name)
    assert key is not None
    return mark(tape.name, key)


def moved(a: str, b: str) -> Plant:
    def act(tape: Path, other: Path) -> Planted:
        os.replace(tape / a, tape / b)
        return Planted(tape, b, [_mark(tape, a)])

    return act


def swapped(a: str, b: str) -> Plant:
    def act(tape: Path, other: Path) -> Planted:
        (tape / a).rename(tape / "swap")
        (tape / b).rename(tape / a)
        (tape / "swap").rename(tape / b)
        return Planted(tape, b, [_mark(tape, a), _mark(tape, b)])

    return act


def foreign(name: str) -> Plant:
    def act(tape: Path, other: Path) -> Planted:
        (tape / name).unlink()
        shutil.copy(other / name, tape / name)
        return Planted(tape, name, [f"MARK-{other.name}-"])

    return act


def linked(name: str) -> Plant:
    def act(tape: Path, other: Path) -> Planted:
        (tape / name).unlink()
        (tape / name).symlink_to(other / name)
        return Planted(tape, name, [f"MARK-{other.name}-"])

    return act


def linked_inside(a: str, b: str) -> Plant:
    def act(tape: Path, other: Path) -> Planted:
        (tape / b).unlink()
        (tape / b).symlink_to(tape / a)
        return Planted(tape, b, [_mark(tape, b)])

    return act


def linked_folder(name: str) -> Plant:
    def act(tape: Path, other: Path) -> Planted:
        folder = (tape / name).parent
        shutil.rmtree(folder)
        folder.symlink_to((other / name).parent)
        return Planted(tape, name, [f"MARK-{other.name}-"])

    return act


def linked_split(name: str) -> Plant:
    def act(tape: Path, other: Path) -> Planted:
        split = name.partition("/")[0]
        shutil.rmtree(tape / split)
        (tape / split).symlink_to(other / split)
        return Planted(tape, name, [f"MARK-{other.name}-"])

    return act


def in_place(name: str, make: Callable[[Path], Any]) -> Plant:
    def act(tape: Path, other: Path) -> Planted:
        (tape / name).unlink()
        make(tape / name)
        return Planted(tape, name, [_mark(tape, name)])

    return act


def unix_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


MISPLACED: dict[str, Plant] = {
    "a step renamed to one that is not there": moved(ROLLOUT, "train/rollout/step_000008.parquet"),
    "a step renamed to another": moved("train/rollout/step_000002.parquet", ROLLOUT),
    "two steps swapped": swapped("train/rollout/step_000002.parquet", ROLLOUT),
    "a stage in place of another": swapped("train/reward/step_000001.parquet", ROLLOUT),
    "a split in place of another": swapped("val/rollout/step_000001.parquet", ROLLOUT),
    "a call in place of another": swapped("train/rollout/step_000001.c1.parquet", ROLLOUT),
    "a call renamed": moved("train/rollout/step_000001.c1.parquet", "train/rollout/step_000001.c2.parquet"),
    "inputs in place of a result": swapped("train/rollout/step_000001.in.parquet", ROLLOUT),
    "a shard in place of a whole": moved(SHARD, ROLLOUT),
    "a rank in place of another": swapped("train/shard/step_000001.r1of2.parquet", SHARD),
    "the same recording of another tape": foreign(ROLLOUT),
    "the same shard of another tape": foreign(SHARD),
}
NO_FILES: dict[str, Plant] = {
    "a link to another tape": linked(ROLLOUT),
    "a link to another step": linked_inside("train/rollout/step_000002.parquet", ROLLOUT),
    "a stage that is a link": linked_folder(ROLLOUT),
    "a split that is a link": linked_split(ROLLOUT),
    "a pipe": in_place(ROLLOUT, os.mkfifo),
    "a socket": in_place(ROLLOUT, unix_socket),
    "a link to a device": in_place(ROLLOUT, lambda path: path.symlink_to("/dev/zero")),
    "a folder": in_place(ROLLOUT, Path.mkdir),
}


# -- the ways of reading -----------------------------------------------------------------------------------


def _tape(planted: Planted, **options: Any) -> rolltape.Tape:
    key = planted.key
    shards = {"rank": key.rank, "world_size": key.world_size} if key.world_size > 1 else {}
    return rolltape.Tape(planted.tape, split=key.split, **{"mode": "replay", **shards, **options})


def replayed(planted: Planted, steps: Any = None, **options: Any) -> list[Any]:
    """Everything that a replay of the place returns, and of the steps before it (which reads it ahead)."""
    key, seen = planted.key, []
    with _tape(planted, match={"inputs": "ignore"}, **options) as tape:
        stage = tape.stage(key.stage, inputs=False)(lambda: {"live": [1, 2]})
        for step in steps or [key.step]:
            try:
                with tape.step(step):
                    seen += [repr(stage()) for _ in range((key.call if isinstance(key.call, int) else 0) + 1)]
            except RolltapeError as error:
                seen.append(str(error))
    return seen


def substituted(planted: Planted, on_miss: str) -> Any:
    """A step that is not there, for which every recording may stand in."""
    return replayed(planted, range(10, 20), on_miss=on_miss)


def planned(planted: Planted) -> Any:
    key = planted.key
    with _tape(planted) as tape:
        tape.stage(key.stage)(lambda: None)
        return [tape.plan(key.step, key.stage), tape.needs_engine([key.step], key.stage)]


def asked_of_the_tape(planted: Planted) -> Any:
    key, seen = planted.key, []
    with _tape(planted) as tape:
        for inputs in (False, True):
            recording = tape.recording(key.step, key.stage, key.split, key.call, inputs=inputs)
            for ask in (recording.value, recording.batch, lambda r=recording: r.batch(["response"])):
                seen.append(_said(lambda ask=ask: repr(ask())))
    return seen


def samples(planted: Planted, *, whole: bool) -> Any:
    key = planted.key
    opened = rolltape.open(planted.tape)
    seen = []
    for ask in (
        lambda found: found.ids,
        lambda found: found.token_counts,
        lambda found: found["a", 0],
        lambda found: [found[one] for one in found.ids],
        lambda found: {name: found.columns[name] for name in found.columns},
    ):
        seen.append(
            _said(lambda ask=ask: repr(ask(opened.samples(key.step, key.stage, key.split, whole=whole))))
        )
    return seen


def partly(planted: Planted) -> Any:
    key = planted.key
    recording = rolltape.open(planted.tape).recording(key)
    return [
        _said(lambda: repr(recording.again().batch(["response"], slice(0, 1)).columns)),
        _said(lambda: repr(recording.again().identity())),
        _said(lambda: repr(recording.again().columns)),
        _said(lambda: repr(recording.again().about)),
        _said(lambda: repr(recording.again().file.digest)),
        _said(lambda: repr(recording.again().verify())),
    ]


def asked_of_the_run(planted: Planted) -> Any:
    key = planted.key
    opened = rolltape.open(planted.tape)
    return [
        _said(lambda: repr(opened.seconds(key.stage, key.split))),
        _said(lambda: repr(opened.find(key))),
        _said(lambda: repr([opened.stages(key.split), opened.steps(key.stage, key.split)])),
        _said(lambda: repr([found.value() for found in opened.recordings(key.stage, key.split)])),
    ]


def compared(planted: Planted) -> Any:
    good = planted.tape.parent / "good"
    sides = (good, planted.tape), (planted.tape, good)
    return [_said(lambda a=a, b=b: repr(rolltape.compare(a, b))) for a, b in sides]


def command(*words: str) -> Callable[[Planted], Any]:
    """A command of the terminal; TAPE, STEP, STAGE, SPLIT, GOOD and OUT stand for what they say."""

    def act(planted: Planted) -> Any:
        key, out = planted.key, planted.out
        said = {
            "TAPE": planted.tape, "STEP": key.step, "STAGE": key.stage, "SPLIT": key.split,
            "GOOD": planted.tape.parent / "good", "OUT": out, "RANK": key.rank,
        }  # fmt: skip
        done = run(*(said.get(word, word) for word in words))
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return [done.stdout, done.stderr, *_written(out)]

    return act


def _written(out: Path) -> list[str]:
    """What a command wrote: as it is, and as a tape where it is one."""
    files = [out] if out.is_file() else sorted(out.rglob("*")) if out.is_dir() else []
    seen = [file.read_bytes().decode("latin-1") for file in files if file.is_file()]
    if (out / "tape.json").is_file():
        opened = rolltape.open(out)
        keys = [key for file in files if (key := Key.parse(str(file.relative_to(out)))) is not None]
        seen += [_said(lambda key=key: repr(opened.recording(key).value())) for key in keys]
        assert {finding.kind for finding in inspect(LocalStorage(out)).findings} <= {"missing", "leftover"}
    return seen


def repaired(planted: Planted) -> Any:
    """A tape that lost files is mended from the planted one: what is wrong there is not fetched."""
    lost = planted.out
    copy_tape(planted.tape.parent / "sound", lost)
    (lost / planted.place).unlink(missing_ok=True)
    repair(LocalStorage(lost), LocalStorage(planted.tape))
    assert not {finding.kind for finding in inspect(LocalStorage(lost)).findings} & {"misplaced", "damaged"}
    return _said(lambda: repr(rolltape.open(lost).recording(planted.key).value()))


def checked(planted: Planted) -> Any:
    report = inspect(LocalStorage(planted.tape))
    assert report.findings
    return repr(report.findings)


READ: dict[str, Callable[[Planted], Any]] = {
    "replay": replayed,
    "replay, read ahead": lambda planted: replayed(planted, range(10), prefetch=True),
    "replay, not read ahead": lambda planted: replayed(planted, range(10), prefetch=False),
    "auto": lambda planted: replayed(planted, mode="auto"),
    "replay onto another tape": lambda planted: [
        *replayed(planted, out=planted.out), *_written(planted.out)
    ],
    "cycle": lambda planted: substituted(planted, "cycle"),
    "last": lambda planted: substituted(planted, "last"),
    "nearest": lambda planted: substituted(planted, "nearest"),
    "plan": planned,
    "tape.recording": asked_of_the_tape,
    "run.samples": lambda planted: samples(planted, whole=False),
    "run.samples, whole": lambda planted: samples(planted, whole=True),
    "parts of a recording": partly,
    "run": asked_of_the_run,
    "compare": compared,
    "check": checked,
    "repair --from": repaired,
    "rolltape ls": command("ls", "TAPE"),
    "rolltape ls --json": command("ls", "TAPE", "--json"),
    "rolltape show STEP": command("show", "TAPE", "STEP", "--stage", "STAGE", "--split", "SPLIT"),
    "rolltape show --sample": command("show", "TAPE", "STEP", "--stage", "STAGE", "--split", "SPLIT", "--sample", "0", "--full"),  # noqa: E501
    "rolltape show --json": command("show", "TAPE", "STEP", "--stage", "STAGE", "--split", "SPLIT", "--json"),
    "rolltape show --inputs": command("show", "TAPE", "STEP", "--stage", "STAGE", "--split", "SPLIT", "--inputs", "--sample", "0"),  # noqa: E501
    "rolltape check": command("check", "TAPE"),
    "rolltape diff": command("diff", "GOOD", "TAPE", "--html", "OUT"),
    "rolltape diff, the other way": command("diff", "TAPE", "GOOD", "--json"),
    "rolltape export": command("export", "TAPE", "--stage", "STAGE", "--to", "OUT", "--format", "jsonl"),
    "rolltape export to parquet": command("export", "TAPE", "--stage", "STAGE", "--to", "OUT", "--format", "parquet"),  # noqa: E501
    "rolltape cut": command("cut", "TAPE", "--steps", "0-9", "--out", "OUT"),
    "rolltape cut --samples": command("cut", "TAPE", "--steps", "0-9", "--samples", "0", "--out", "OUT"),
    "rolltape cut --redact": command("cut", "TAPE", "--steps", "0-9", "--redact", "--out", "OUT"),
    "rolltape redact": command("redact", "TAPE", "--out", "OUT"),
    "rolltape accept": command("accept", "TAPE", "--as", "GOOD", "--reason", "r", "--author", "a"),
    "rolltape rerun": command("rerun", "TAPE", "STEP", "--stage", "STAGE", "--split", "SPLIT", "--fn", "builtins:dict"),  # noqa: E501
    "rolltape prune": command("prune", "TAPE", "--keep", "2", "--dry-run"),
    "rolltape repair": command("repair", "TAPE"),
}  # fmt: skip
"""Every way that does not need the libraries of the viewer or of the server."""


def _said(ask: Callable[[], Any]) -> str:
    try:
        return str(ask())
    except RolltapeError as error:
        return str(error)


SHOWS_NOTHING = {"plan", "run", "check", "compare", "rolltape ls", "rolltape ls --json", "rolltape check"}
SHOWS_NOTHING |= {"rolltape diff", "rolltape diff, the other way", "rolltape cut --redact", "rolltape redact"}
SHOWS_NOTHING |= {"rolltape accept", "rolltape rerun", "rolltape prune", "rolltape repair"}
"""Ways that show nothing of what a sample holds, not even of a sound tape."""


WRITES = {"auto", "rolltape accept", "rolltape repair"}
"""Ways that may change the tapes they are given: each has its own."""


def copy_tape(tape: Path, to: Path) -> Path:
    """A copy that shares the recordings, which nobody changes in place."""
    return Path(shutil.copytree(tape, to, copy_function=lambda a, b: _share(str(a), str(b))))


def _share(a: str, b: str) -> None:
    os.link(a, b) if a.endswith(".parquet") else shutil.copy(a, b)


@dataclass(frozen=True)
class Tapes:
    """Recorded once: copies are made of them."""

    sound: Path
    other: Path
    good: Path

    def laid_out(self, folder: Path) -> Path:
        """A copy of each, and where the one is that files are planted on."""
        folder.mkdir()
        copy_tape(self.sound, folder / "sound"), copy_tape(self.good, folder / "good")
        return copy_tape(self.sound, folder / "planted")


@pytest.fixture(scope="module")
def tapes(tmp_path_factory: pytest.TempPathFactory) -> Tapes:
    folder = tmp_path_factory.mktemp("tapes")
    return Tapes(*(record(folder / name) for name in ("planted", "elsewhere", "good")))


def _each(tapes: Tapes, folder: Path, plant: Plant) -> Iterator[tuple[str, Planted]]:
    """Every way of reading, and the tape that it is to read."""
    shared = plant(tapes.laid_out(folder / "shared"), tapes.other)
    for number, name in enumerate(READ):
        found = plant(tapes.laid_out(folder / str(number)), tapes.other) if name in WRITES else shared
        yield name, replace(found, out=folder / f"out{number}")


QUIET = {"plan", "last", "nearest", "rolltape show --inputs", "rolltape prune", "rolltape repair"}
"""Ways that do not come to the place, or read names only."""

ELSEWHERE = {"a step renamed to one that is not there", "a call renamed"}
ELSEWHERE |= {"a stage that is a link", "a split that is a link"}
"""Nobody asks for what was renamed; of folders that are links, the folder is named."""


@pytest.mark.parametrize("kind", MISPLACED | NO_FILES)
def test_nothing_of_it_is_read_and_it_is_named(tapes: Tapes, tmp_path: Path, kind: str) -> None:
    for name, planted in _each(tapes, tmp_path, (MISPLACED | NO_FILES)[kind]):
        said = _said(lambda name=name, planted=planted: READ[name](planted))
        for one in planted.marks:
            if one in said:
                pytest.fail(f"{name}: {said[max(0, said.index(one) - 300) :][:600]}")
        if kind not in ELSEWHERE and name not in QUIET and Path(planted.place).name not in said:
            pytest.fail(f"{name} does not name it: {said[:600]}")


def test_of_a_sound_tape_it_is_all_there(tapes: Tapes, tmp_path: Path) -> None:
    """Else the test above would find nothing because nothing is looked at."""
    blind = []
    for name, planted in _each(tapes, tmp_path, lambda tape, other: Planted(tape, ROLLOUT)):
        if name == "check":
            continue
        said = _said(lambda name=name, planted=planted: READ[name](planted))
        if "-rollout-" not in said and name not in SHOWS_NOTHING:
            blind.append((name, said[:500]))
    assert not blind
