"""Imports dumps one by one: each is read and checked completely before anything of it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolltape.batch import dismantle
from rolltape.errors import (
    CorruptFileError,
    MissingDependencyError,
    RolltapeError,
    StorageError,
    TapeNotFoundError,
)
from rolltape.importing.errors import UnsafeDumpError
from rolltape.importing.layouts import Dump, Found, check_split, find_dumps
from rolltape.importing.reader import read_dump
from rolltape.importing.shapes import as_recorded
from rolltape.importing.standins import register
from rolltape.key import Key
from rolltape.policy import Mode, Overwrite
from rolltape.settings import Settings
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.tape import Tape

Progress = Callable[[int, int, str], None]
"""Told how many dumps of how many are done, and which comes next."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A dump that was left out, and why."""

    file: str
    kind: str
    """``refused``, ``damaged``, ``incomplete`` or ``unsupported``."""
    message: str


@dataclass(frozen=True, slots=True)
class Imported:
    """A dump that is on the tape now."""

    split: str
    stage: str
    step: int
    call: int
    samples: int
    file: str


@dataclass(slots=True)
class Report:
    """What an import did."""

    system: str
    root: str
    tape: str
    imported: list[Imported] = field(default_factory=list)
    kept: int = 0
    """Recordings that were on the tape already."""
    problems: list[Problem] = field(default_factory=list)


def import_dumps(
    path: str | Path,
    to: str | Path,
    *,
    split: str | None = None,
    stage: str = "rollout",
    steps: StepSelector = ALL_STEPS,
    dry_run: bool = False,
    progress: Progress = lambda done, total, name: None,
) -> Report | None:
    """Bring the dumps under ``path`` onto the tape ``to``; None where there are none.

    Recordings that are on the tape already are kept, so that an import can be run again. A dump that is
    refused or damaged is reported, and the others are imported. ``dry_run`` reads everything and writes
    nothing.
    """
    found = find_dumps(Path(path))
    if found is None:
        return None
    found = check_split(found, split)
    report = Report(found.system, str(found.root), str(Path(to).absolute()))
    register()
    target: _Target = _Nothing(to) if dry_run else _OnTape(to)
    dumps = [dump for dump in found.dumps if dump.step is None or dump.step in steps]
    try:
        for done, dump in enumerate(dumps):
            progress(done, len(dumps), str(dump.path))
            _import(dump, found, target, report, stage, steps)
        progress(len(dumps), len(dumps), "")
    finally:
        target.close()
    return report


def _import(
    dump: Dump, found: Found, target: _Target, report: Report, stage: str, steps: StepSelector
) -> None:
    """One dump, onto the tape or into the report."""
    stages = {stage if name == "rollout" else name: file for name, file in dump.files.items()}
    if dump.problem is not None:
        report.problems.append(Problem(str(dump.path), "incomplete", dump.problem))
        return
    if dump.step is not None and all(target.has(dump.split, s, dump.step, dump.call) for s in stages):
        report.kept += len(stages)
        return
    values: dict[str, Any] = {}
    file = dump.path
    try:
        for name, file in stages.items():
            values[name] = as_recorded(read_dump(file), found.system, dump.step)
        step = dump.step if dump.step is not None else int(values[stage]["rollout_id"])
        samples = {name: dismantle(value).samples for name, value in values.items()}
    except MissingDependencyError:
        raise  # it is not the dump's fault
    except (RolltapeError, OSError) as error:
        report.problems.append(_problem(file, error))
        return
    for name, value in values.items():
        if step not in steps:
            return
        if target.has(dump.split, name, step, dump.call):
            report.kept += 1
            continue
        target.put(dump.split, name, step, dump.call, value)
        at = str(stages[name])
        report.imported.append(Imported(dump.split, name, step, dump.call, samples[name], at))


def _problem(file: Path, error: Exception) -> Problem:
    if isinstance(error, (StorageError, OSError)) and not isinstance(error, CorruptFileError):
        return Problem(str(file), "unreadable", str(error))
    what = error.what if isinstance(error, RolltapeError) else str(error)
    kinds = {UnsafeDumpError: "refused", CorruptFileError: "damaged"}
    kind = next((word for cls, word in kinds.items() if isinstance(error, cls)), "unsupported")
    return Problem(str(file), kind, what)


class _Target:
    """Where recordings go: what is there already is listed once."""

    def __init__(self, recorded: set[Key]) -> None:
        self._recorded = recorded

    def has(self, split: str, stage: str, step: int, call: int) -> bool:
        return Key(split=split, stage=stage, step=step, call=call) in self._recorded

    def put(self, split: str, stage: str, step: int, call: int, value: Any) -> None:
        """Keep a value; nothing of it where it is not finished."""

    def close(self) -> None:
        """No more is to come."""


class _Nothing(_Target):
    """For a dry run."""

    def __init__(self, to: str | Path) -> None:
        settings = Settings(dir=str(to), mode=Mode.REPLAY)
        try:
            with Tape(settings=settings) as tape:
                super().__init__({recording.key for recording in tape.recordings()})
        except TapeNotFoundError:
            super().__init__(set())


class _OnTape(_Target):
    """A tape, whose environment variables and random numbers are none of an import's business."""

    def __init__(self, to: str | Path) -> None:
        self._tape = Tape(
            settings=Settings(
                dir=str(to), mode=Mode.RECORD, overwrite=Overwrite.KEEP, background=False, random_state=False
            )
        )
        super().__init__({recording.key for recording in self._tape.recordings()})
        self._stages: dict[str, Callable[..., Any]] = {}

    def put(self, split: str, stage: str, step: int, call: int, value: Any) -> None:
        record = self._stages.get(stage)
        if record is None:
            record = self._stages[stage] = self._tape.stage(stage)(_as_it_is)
        with self._tape.step(step, split=split):
            for earlier in range(call):
                _pass_over(record, earlier)
            record(value)
        self._recorded.add(Key(split=split, stage=stage, step=step, call=call))

    def close(self) -> None:
        self._tape.close()


class _PassedOver(Exception):
    """Ends a call that only counts."""


def _as_it_is(value: Any) -> Any:
    """The stage function: what was generated elsewhere, long ago."""
    if isinstance(value, _PassedOver):
        raise value
    return value


def _pass_over(record: Callable[..., Any], call: int) -> None:
    """Count a call of the step that another dump holds, and record nothing."""
    try:
        record(_PassedOver(call))
    except _PassedOver:
        return
