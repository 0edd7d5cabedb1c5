"""One trial: a command replays the tape with some code or configuration, and the result is compared.

Knows nothing of git or of configurations. ``judge`` says what the end of a command means.
"""

from __future__ import annotations

import enum
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rolltape._version import __version__
from rolltape.errors import CorruptFileError, FormatVersionError
from rolltape.reader.listing import is_tape
from rolltape.reader.run import Run, open
from rolltape.reader.wording import seconds as in_words
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.verify import Gate, Report, compare
from rolltape.verify.rules.noise_floor import read_floor

SKIP = 125
"""The exit code with which a command says that nothing can be said about it, as for ``git bisect run``."""
NOT_STARTED = 127
"""What a shell reports for a command that there is not."""
PATIENCE = 10.0
"""Seconds that a command has to end itself before it is ended."""
TAIL = 4096
"""Bytes of a command's output that are kept."""


class Outcome(str, enum.Enum):
    """What a trial says."""

    CLEAN = "clean"
    DIVERGES = "diverges"
    SKIPPED = "skipped"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked in every trial."""

    tape: Run
    """The recording, which every trial replays and is compared with."""
    command: tuple[str, ...]
    gate: Gate | None = None
    """What may differ and what must not, as in ``rolltape diff --gate``."""
    steps: StepSelector = ALL_STEPS
    """The steps that are compared."""
    timeout: float | None = None
    """Seconds after which a command is ended, and its trial skipped."""
    repeat: int = 1
    """How often a trial is run at most; it is clean only if each run is."""

    def key(self) -> list[str]:
        """All that a result depends on, besides the code and the configuration."""
        floor = read_floor(self.tape.storage)
        tape = [__version__, self.tape.id, self.tape.version(), repr(floor)]
        return [*tape, *self.command, repr(self.gate or Gate()), str(self.steps), str(self.repeat)]


@dataclass(frozen=True, slots=True)
class Trial:
    """What came out of one trial."""

    outcome: Outcome
    why: str
    """The sentence of the comparison, or why there is none."""
    seconds: float = 0.0
    step: int | None = None
    """The step of the first divergence."""
    path: str | None = None
    """What diverges first: ``loss/log_probs``."""
    causes: tuple[str, ...] = ()
    """What the first divergence looks like."""
    findings: tuple[str, ...] = ()
    """Why the gate stays shut."""
    output: str = ""
    """The end of what the command printed, where it failed."""
    run: int = 1
    """Which run of ``repeat`` decided."""
    empty: bool = False
    """Whether the command ended well, and there is nothing to compare."""
    lasting: bool = True
    """Whether the same would come out again: not so for a command that somebody ended."""
    limit: float | None = None
    """The time limit that ended the command."""

    def to_json(self) -> dict[str, Any]:
        """The trial as JSON values."""
        return asdict(self) | {"outcome": str(self.outcome)}

    @classmethod
    def from_json(cls, node: Mapping[str, Any]) -> Trial:
        """The reverse of ``to_json``; a ``TypeError``, ``KeyError`` or ``ValueError`` for anything else."""
        lists = {name: tuple(node[name]) for name in ("causes", "findings")}
        trial = cls(**{**node, **lists, "outcome": Outcome(node["outcome"])})
        texts = (trial.why, trial.output, *trial.causes, *trial.findings)
        maybe = ((trial.path, str), (trial.step, int), (trial.limit, (int, float)))
        known = (
            all(isinstance(text, str) for text in texts)
            and all(value is None or isinstance(value, kind) for value, kind in maybe)
            and isinstance(trial.seconds, (int, float))
            and (type(trial.run), type(trial.empty), type(trial.lasting)) == (int, bool, bool)
        )
        if not known:
            raise TypeError("this is no result of a trial")
        return trial


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int | None
    """Its exit code, negative for a signal; None where its time was up."""
    seconds: float
    output: str
    """The end of what it printed."""


def call(
    command: Sequence[str],
    environ: Mapping[str, str],
    folder: str,
    log: Path,
    timeout: float | None,
    inherited: Sequence[int] = (),
) -> Ended:
    """Run a command with all its processes, and end them all if its time is up or we are interrupted."""
    began = time.monotonic()
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(
                command,
                env=dict(environ),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=inherited,
            )
        except OSError as error:
            return Ended(NOT_STARTED, 0.0, f"{command[0]} cannot be started: {error.strerror}")
        code: int | None = None
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.returncode is None:
                _end(process)
    return Ended(code, time.monotonic() - began, _tail(log))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
    finally:  # who is interrupted once more does not want to wait
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL))
        return file.read().decode("utf-8", "replace")


def judge(question: Question, ended: Ended, out: str) -> Trial:
    """What the end of a command means, and the tape that it wrote."""
    found = _without_tape(question, ended) or _with_tape(question, ended, out)
    return replace(found, seconds=round(ended.seconds, 3), output=ended.output if ended.code != 0 else "")


def _without_tape(question: Question, ended: Ended) -> Trial | None:
    """What the end of a command means, whatever it recorded; None where that has to be looked at."""
    if ended.code is None:
        why = f"not done after {in_words(question.timeout)}"
        return Trial(Outcome.SKIPPED, why, limit=question.timeout)
    if ended.code == SKIP:
        return Trial(Outcome.SKIPPED, f"the command says so: exit code {SKIP}")
    if ended.code < 0:
        why = f"ended by signal {-ended.code} ({_signal(-ended.code)})"
        return Trial(Outcome.SKIPPED, why, lasting=False)
    return None


def _with_tape(question: Question, ended: Ended, out: str) -> Trial:
    try:
        if _recorded(out):
            report = compare(question.tape, out, gate=question.gate, steps=question.steps)
        elif ended.code:
            why = f"exit code {ended.code} before the first step was recorded"
            return Trial(Outcome.SKIPPED, why, lasting=ended.code != NOT_STARTED)
        else:
            return Trial(Outcome.SKIPPED, "it replayed nothing: there is no tape of its run", empty=True)
    except (CorruptFileError, FormatVersionError) as error:
        return Trial(Outcome.SKIPPED, f"what it recorded cannot be read: {error.what}")
    if report.comparison.compared and not report.clean:
        return _diverged(report)
    if ended.code:  # it began like the recording, and the recording went on
        return Trial(Outcome.DIVERGES, f"it broke off with exit code {ended.code}")
    if not report.comparison.compared:
        return Trial(Outcome.SKIPPED, "nothing on its tape can be compared", empty=True)
    return Trial(Outcome.CLEAN, report.sentence)


def _diverged(report: Report) -> Trial:
    first = report.first
    findings = tuple(f"{one.path}: {one.text}" for one in report.findings)
    return Trial(
        Outcome.DIVERGES,
        report.sentence if first else findings[0],
        step=first.step if first else None,
        path=first.path if first else None,
        causes=tuple(cause.text for cause in report.causes),
        findings=findings,
    )


def _recorded(out: str) -> bool:
    """Whether the command got as far as recording something of a step."""
    if not is_tape(out):
        return False
    run = open(out)
    return any(True for _ in run.recordings()) or any(run.metrics(split=split) for split in run.splits)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
