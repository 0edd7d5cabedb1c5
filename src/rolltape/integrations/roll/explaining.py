"""Why a mock step cannot be loaded: ROLL's three possible reasons, and the one that applies."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from rolltape.errors import StepMissingError, TapeNotFoundError
from rolltape.key import Key
from rolltape.storage import is_url
from rolltape.tape import Tape
from rolltape.tape.missing import ranges

TITLE = "[Rollout Mock]"
_DUMP_FIRST = "run with rollout_mock.mode: dump first, or correct rollout_mock.dump_dir"
_PICKLE = re.compile(r"([^/]+)/step_([0-9]+)\.pkl")


def missing_step(tape: Tape, wanted: Key) -> StepMissingError:
    """The error for a step that is not on the tape."""
    there = [recording.key for recording in tape.recordings()]
    number, evidence, hint = _verdict(wanted, there)
    return StepMissingError(
        f"{TITLE} Mock file not found: {tape.dir}/{wanted.path}\n  reason {number} applies: {evidence}",
        where=tape.dir,
        causes=_reasons(wanted, str(tape.dir)),
        hint=hint,
    )


def missing_tape(error: TapeNotFoundError, directory: str) -> TapeNotFoundError:
    """The error for a ``dump_dir`` without a tape; says what is there, or nearby, instead."""
    if pickles := pickled(directory):
        evidence = f"the directory has {len(pickles)} pickled dumps of ROLL, but no tape"
        hint = f"import them: {import_command(directory)}"
    elif near := _near(directory):
        evidence = f"the directory has no tape; tapes nearby: {', '.join(near)}"
        hint = "set rollout_mock.dump_dir to the one you dumped to"
    else:
        state = "is empty" if os.path.isdir(directory) else "does not exist"
        evidence = f"the directory {state} (working directory: {os.getcwd()})"
        if is_url(directory):
            evidence = "there is no tape at this URL"
        hint = _DUMP_FIRST
    return TapeNotFoundError(
        f"{TITLE} there is nothing to mock: {error.what}\n  reason 2 applies: {evidence}",
        where=directory,
        causes=_reasons(None, directory),
        hint=hint,
    )


@dataclass(frozen=True, slots=True)
class Pickled:
    """A dump written by ROLL itself."""

    split: str
    step: int


def pickled(directory: str) -> list[Pickled]:
    """ROLL's own dumps in a directory, by name; none is opened."""
    if is_url(directory):
        return []
    found = (_PICKLE.fullmatch(f"{path.parent.name}/{path.name}") for path in Path(directory).glob("*/*.pkl"))
    return [Pickled(match[1], int(match[2])) for match in found if match]


def import_command(directory: str) -> str:
    """The command that turns ROLL's own dumps into a tape in the same directory: no config has to change."""
    return f"rolltape import {shlex.quote(directory)} --to {shlex.quote(directory)}"


def _reasons(wanted: Key | None, directory: str) -> list[str]:
    step = "no step" if wanted is None else f"step {wanted.step}"
    mode = "" if wanted is None else f" (current: {wanted.split}, stage {wanted.stage})"
    return [
        f"{step} was run in dump mode" if wanted is None else f"{step} was not run in dump mode",
        f"dump_dir is not the directory that was dumped to: {directory}",
        f"mode or domain mismatch{mode}",
    ]


def _verdict(wanted: Key, there: list[Key]) -> tuple[int, str, str]:
    """Which reason applies, the evidence for it, and what to do."""
    if not there:
        return 2, "the tape is empty", _DUMP_FIRST
    same = sorted({key.step for key in there if (key.split, key.stage) == (wanted.split, wanted.stage)})
    name, has = f"{wanted.split}/{wanted.stage}", f"has steps {ranges(same)}" if same else "has no steps"
    others = sorted({f"{key.split}/{key.stage}" for key in there if key.step == wanted.step})
    if others:
        hint = "use the same scheduler mode (train or val) and domains as in the dump"
        return 3, f"{', '.join(others)} has step {wanted.step}, but {name} {has}", hint
    if not same:
        places = sorted({f"{key.split}/{key.stage}" for key in there})
        hint = "dump again with the same pipeline, or mock with the pipeline that was dumped"
        return 3, f"{name} {has}; the tape has {', '.join(places)}", hint
    if wanted.step > same[-1]:
        hint = f"lower max_steps to {same[-1] + 1}, or dump more steps: the dump needs at least as many"
    else:
        hint = f"dump step {wanted.step} first, or start from a step that was dumped"
    return 1, f"{name} {has}", hint


def _near(directory: str) -> list[str]:
    """Tapes in the directory itself and next to it."""
    if is_url(directory):
        return []
    folders = [Path(directory), Path(directory).parent]
    found = [path.parent for folder in folders if folder.is_dir() for path in folder.glob("*/tape.json")]
    return sorted(map(str, found))[:5]
