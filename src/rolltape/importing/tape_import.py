"""Imports dumps one by one: each is read and checked completely before any part of it is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from rolltape import errors
from rolltape.batch import dismantle
from rolltape.errors import (
    CorruptFileError,
    MissingDependencyError,
    RolltapeError,
    StorageError,
    TapeNotFoundError,
)
from rolltape.importing.dump_layouts import Dump, as_recorded, check_split, find_dumps
from rolltape.importing.dump_reader import read_dump
from rolltape.importing.nodes import UnsafeDumpError
from rolltape.importing.standins import register
from rolltape.importing.worker import Worker, answer_all
from rolltape.key import Key
from rolltape.policy import Mode, Overwrite
from rolltape.settings import Settings
from rolltape.steps import ALL_STEPS, StepSelector, as_step
from rolltape.storage import absolute
from rolltape.tape import Tape

Progress = Callable[[int, int, str], None]
"""Called with the number of dumps done, the total, and the next dump."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A dump that was not imported, and why."""

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
    """Recordings that were already on the tape."""
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
    """Import the dumps under ``path`` onto the tape ``to``; None if there are none.

    Recordings that are already on the tape are kept, so that an import can be run again. A dump that is
    refused or damaged is reported, and the others are imported. ``dry_run`` reads everything and writes
    nothing.
    """
    found = find_dumps(Path(path))
    if found is None:
        return None
    found = check_split(found, split)
    report = Report(found.system, str(found.root), absolute(to))
    register()  # whoever imported can also read it back
    _target(to, dry_run).close()  # a tape that cannot be opened is told before anything is read
    dumps = [dump for dump in found.dumps if dump.problem or dump.step is None or dump.step in steps]
    job = {"to": str(to), "dry_run": dry_run, "system": found.system, "stage": stage, "steps": str(steps)}
    worker = Worker(job)
    try:
        for done, dump in enumerate(dumps):
            progress(done, len(dumps), str(dump.path))
            _ask(worker, dump, report)
        progress(len(dumps), len(dumps), "")
    finally:
        worker.close()
    return report


def _ask(worker: Worker, dump: Dump, report: Report) -> None:
    """Have one dump imported; what became of it goes into the report."""
    if dump.problem is not None:
        report.problems.append(Problem(str(dump.path), "incomplete", dump.problem))
        return
    files = {stage: str(file) for stage, file in dump.files.items()}
    question = {"files": files, "step": dump.step, "split": dump.split, "call": dump.call}
    try:
        size = sum(_size_on_disk(file) for file in dump.files.values())
        answer = worker.ask(question, size)
    except (RolltapeError, OSError) as error:
        report.problems.append(_problem(dump.path, error))
        return
    if "raise" in answer:
        name, what, where, causes, hint = answer["raise"]
        raise getattr(errors, name, RolltapeError)(what, where=where, causes=causes, hint=hint)
    report.kept += answer.get("kept", 0)
    report.imported += [Imported(*entry) for entry in answer.get("imported", ())]
    if "problem" in answer:
        kind, message, *file = answer["problem"]
        report.problems.append(Problem(file[0] if file else str(dump.path), kind, message))


def _size_on_disk(file: Path) -> int:
    """What a dump may be measured by: a file of holes says that it is large, and is not."""
    found = os.stat(file)
    return min(found.st_size, found.st_blocks * 512 + 4096)


def serve(job: dict[str, Any]) -> None:
    """What the worker does: import the dumps it is asked for."""
    register()
    target = _target(job["to"], job["dry_run"])
    steps = StepSelector.parse(job["steps"])

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        files = {stage: Path(file) for stage, file in question["files"].items()}
        dump = Dump(files, question["step"], question["split"], question["call"])
        report = Report(job["system"], "", job["to"])
        try:
            _import(dump, job["system"], target, report, job["stage"], steps)
        except RolltapeError as error:
            known = type(error).__name__, error.what, error.where, list(error.causes), error.hint
            return {"raise": known, "worn": True}
        said: dict[str, Any] = {"kept": report.kept, "imported": [astuple(one) for one in report.imported]}
        for problem in report.problems:
            said["problem"] = [problem.kind, problem.message, problem.file]
        return said

    try:
        answer_all(answer)
    finally:
        target.close()


def _target(to: str | Path, dry_run: bool) -> _Target:
    return _Nothing(to) if dry_run else _OnTape(to)


def _import(
    dump: Dump, system: str, target: _Target, report: Report, stage: str, steps: StepSelector
) -> None:
    """One dump, onto the tape or into the report."""
    stages = {stage if name == "rollout" else name: file for name, file in dump.files.items()}
    if dump.step is not None and all(target.has(dump.split, s, dump.step, dump.call) for s in stages):
        report.kept += len(stages)
        return
    values: dict[str, Any] = {}
    file = dump.path
    try:
        for name, file in stages.items():
            values[name] = as_recorded(read_dump(file), system, dump.step)
        step = as_step(dump.step if dump.step is not None else int(values[stage]["rollout_id"]))
        samples = {name: dismantle(value).samples for name, value in values.items()}
    except MissingDependencyError:
        raise  # it is not the dump's fault
    except MemoryError:
        raise  # after that nothing more is asked of this process
    except Exception as error:  # whatever is in it: the other dumps are not affected
        report.problems.append(_problem(file, error))
        return
    for name, value in values.items():
        if step not in steps:
            return
        if target.has(dump.split, name, step, dump.call):
            report.kept += 1
            continue
        try:
            target.put(dump.split, name, step, dump.call, value)
        except (StorageError, MissingDependencyError):
            raise  # the tape cannot be written, or read back: the next dump would fare no better
        except MemoryError as error:
            if not isinstance(error, RolltapeError):
                raise
            report.problems.append(_problem(stages[name], error))
            return
        except Exception as error:  # a value that can be taken apart, and still not be stored
            report.problems.append(_problem(stages[name], error))
            return
        at = str(stages[name])
        report.imported.append(Imported(dump.split, name, step, dump.call, samples[name], at))


def _problem(file: Path, error: Exception) -> Problem:
    if isinstance(error, OSError) and not isinstance(error, CorruptFileError):
        return Problem(str(file), "unreadable", str(error))
    what = (
        error.what if isinstance(error, RolltapeError) else f"its contents are inconsistent: {error!r:.200}"
    )
    kinds = {UnsafeDumpError: "refused", CorruptFileError: "damaged", RolltapeError: "unsupported"}
    kind = next((word for cls, word in kinds.items() if isinstance(error, cls)), "damaged")
    return Problem(str(file), kind, what)


class _Target:
    """Where recordings go; existing ones are listed once."""

    def __init__(self, recorded: set[Key]) -> None:
        self._recorded = recorded

    def has(self, split: str, stage: str, step: int, call: int) -> bool:
        return Key(split=split, stage=stage, step=step, call=call) in self._recorded

    def put(self, split: str, stage: str, step: int, call: int, value: Any) -> None:
        """Write a value, completely or not at all."""

    def close(self) -> None:
        """Finish: no more values follow."""


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
    """A tape opened for importing: settings from the environment and random state are ignored."""

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
            record = self._stages[stage] = self._tape.stage(stage, inputs=False)(_as_it_is)
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
    """The stage function: returns the imported value."""
    if isinstance(value, _PassedOver):
        raise value
    return value


def _pass_over(record: Callable[..., Any], call: int) -> None:
    """Count a call that another dump holds, and record nothing."""
    try:
        record(_PassedOver(call))
    except _PassedOver:
        return
