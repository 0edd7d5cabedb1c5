"""What a ``Rollout`` was given: it keeps its prompts once for each group, beside the samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from rolltape.batch.arrays import Bits
from rolltape.batch.tree import Tree
from rolltape.codec.file import RecordingFile
from rolltape.reader.samples import Samples

ROLLOUT = "engines.rollout"
"""What tapes call the adapter of a ``Rollout``."""


class _Wholes(dict[str, Bits]):
    """The arrays of a file that have no entry per sample, read when they are asked for."""

    def __init__(self, file: RecordingFile) -> None:
        self._file = file

    def __missing__(self, name: str) -> Bits:
        return self._file.whole(name)


def is_rollout(samples: Samples) -> bool:
    """Whether a stage returned a ``Rollout``."""
    return all(_given(file.file) is not None for file in samples.files)


def given_prompt(samples: Samples, sample: int, fields: tuple[str, ...] = ("text", "messages")) -> Any:
    """The first of these fields that the prompt of a sample has, where the recording is a ``Rollout``."""
    file, at = samples.locate(sample)
    given = _given(file.file)
    if given is None:
        return None
    group = int(np.asarray(samples.cell("group", sample)))
    columns = given.record_columns()
    if columns is not None:  # as many prompts as completions: then they are columns too
        named = [column for name in fields if (column := columns.get(name)) is not None]
        values = (samples.cell(column, sample - at + group) for column in named)
    else:
        prompt = (given.items() or [])[group]
        nodes = (node for name in fields if (node := prompt.child(name)) is not None)
        values = (node.build({}, _Wholes(file.file)) for node in nodes)
    return next((value for value in values if value), None)


def _given(file: RecordingFile) -> Tree | None:
    """The prompts as the file has them, of which nothing has been made yet."""
    given = file.tree.child("prompts", "given") if file.tree.adapter == ROLLOUT else None
    return given if given is not None and (given.items() or given.record_columns()) else None
