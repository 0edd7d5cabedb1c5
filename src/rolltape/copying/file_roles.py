"""What a file is to a copy, by its name: in which order files may appear, how two of one name are merged."""

from __future__ import annotations

import enum
import re

from rolltape.key import metrics_path
from rolltape.reader.listing import NOTES, is_name
from rolltape.tape.current_run import NAME as RUNS
from rolltape.tape.manifest import NAME
from rolltape.tape.opening import UNFINISHED_COPY

_STEP = re.compile(r"([^/]+)/([^/]+)/step_([0-9]{6,19})(\.[^/]+)?")
_WHICH_RUN = (RUNS, "dropped.jsonl")
"""What says which recordings count, and so comes before them."""


class Role(enum.IntEnum):
    """In the order in which a copy writes them: whoever reads the copy meanwhile is never misled."""

    FIRST_LINES = 0
    """Lines that say which recordings count."""
    INPUTS = 1
    RESULT = 2
    COMMIT = 3
    """What says that all parts of a step are there."""
    LINES = 4
    """Metrics, and notes a line at a time."""
    NOTE = 5
    """A note that is one file."""
    MANIFEST = 6
    FOREIGN = 7
    """No part of a tape: left alone."""

    @property
    def is_lines(self) -> bool:
        return self in (Role.FIRST_LINES, Role.LINES)

    @property
    def is_of_a_step(self) -> bool:
        return self in (Role.INPUTS, Role.RESULT, Role.COMMIT)


def role_of(name: str) -> Role:
    """What a file is.

    >>> role_of("train/rollout/step_000000.in.parquet").name
    'INPUTS'
    """
    split = name.partition("/")[0]
    if name == NAME:
        return Role.MANIFEST
    if name in _WHICH_RUN:
        return Role.FIRST_LINES
    if is_name(split) and name == metrics_path(split):
        return Role.LINES
    if name in NOTES and name != UNFINISHED_COPY:
        return Role.LINES if name.endswith(".jsonl") else Role.NOTE
    match = _STEP.fullmatch(name)
    if match is None or not (is_name(match[1]) and is_name(match[2])):
        return Role.FOREIGN
    if name.endswith(".parquet"):
        return Role.INPUTS if name.endswith(".in.parquet") else Role.RESULT
    return Role.COMMIT if name.endswith((".commit", ".void")) else Role.FOREIGN


def step_of(name: str) -> int:
    """The step that a recording, its inputs or its commit is of."""
    match = _STEP.fullmatch(name)
    assert match is not None, name
    return int(match[3])
