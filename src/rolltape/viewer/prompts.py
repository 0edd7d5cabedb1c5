"""The prompts of samples: a column's text, what a ``Rollout`` was given, or decoded token ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from rolltape.batch.arrays import Bits
from rolltape.batch.tree import assemble
from rolltape.codec.file import RecordingFile
from rolltape.viewer.rows import Rows

ROLLOUT = "engines.rollout"


class _Wholes(dict[str, Bits]):
    """The arrays of a file that have no entry per sample, read when they are asked for."""

    def __init__(self, file: RecordingFile) -> None:
        self._file = file

    def __missing__(self, name: str) -> Bits:
        return self._file.whole(name)


def is_rollout(rows: Rows) -> bool:
    """Whether a stage returned a ``Rollout``, which keeps its prompts once for each group."""
    return all(_given(file) is not None for file in rows.files)


def given_prompt(rows: Rows, sample: int, fields: tuple[str, ...] = ("text", "messages")) -> Any:
    """The first of these fields that the prompt of a sample has, where the recording is a ``Rollout``."""
    file, at = rows.locate(sample)
    given = _given(file)
    if given is None:
        return None
    group = int(np.asarray(rows.cell("group", sample)))
    if "$records" in given:  # as many prompts as completions: then they are columns too
        columns = [given["fields"][name].get("$column") for name in fields]
        first = sample - at
        values = (rows.cell(column, first + group) for column in columns if column is not None)
    else:
        node = given["$list"][group].get("fields", {})
        values = (assemble(node[name], {}, _Wholes(file)) for name in fields if node.get(name))
    return next((value for value in values if value), None)


def _given(file: RecordingFile) -> dict[str, Any] | None:
    """The prompts as the header has them, of which nothing has been made yet."""
    tree = file.header["tree"]
    if not isinstance(tree, dict) or tree.get("$adapted") != ROLLOUT:
        return None
    given = tree["parts"]["prompts"]["given"]
    return given if isinstance(given, dict) and ("$list" in given or "$records" in given) else None
