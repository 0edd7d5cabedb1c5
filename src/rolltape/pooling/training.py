"""What a trainer needs of samples, whatever the recordings call it: token ids, log-probs, rewards, versions.

Rows are without padding; :meth:`Training.padded` lays them out as trainers do, prompts padded on the left and
responses on the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rolltape.batch.columns import ArrayColumn, RaggedColumn
from rolltape.batch.floats import decode
from rolltape.batch.roles import columns_with
from rolltape.errors import BatchError
from rolltape.pooling.recordings import Opened

LOGPROBS = ("rollout_logprobs", "logprobs")
"""Roles of columns with the log-probs of the policy that drew a sample."""


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """Samples as a trainer needs them: one entry for each, token rows without padding."""

    prompt_ids: list[np.ndarray]
    response_ids: list[np.ndarray]
    response_mask: list[np.ndarray]
    """True where a loss counts the token: what a tool said in between is not trained on."""
    logprobs: list[np.ndarray] | None
    """Of each response token under the policy that drew it, as it was recorded; None where none has any."""
    reward: np.ndarray
    """float64; NaN where it is not known."""
    version: np.ndarray
    """int64: the version of the policy that drew the sample, the step where none is recorded."""
    group: np.ndarray
    """int64: samples with the same number were drawn together for one prompt."""
    uid: list[str]
    index: np.ndarray
    step: np.ndarray

    def __len__(self) -> int:
        return len(self.response_ids)

    def padded(self, pad: int = 0) -> dict[str, np.ndarray]:
        """Dense arrays, by the names that verl has: prompts, responses, input_ids, masks, log-probs."""
        prompts, asked = _laid_out(self.prompt_ids, pad, np.int64, left=True)
        responses, said = _laid_out(self.response_ids, pad, np.int64)
        attention = np.concatenate([asked, said], axis=1).astype(np.int64)
        found = {
            "prompts": prompts,
            "responses": responses,
            "input_ids": np.concatenate([prompts, responses], axis=1),
            "attention_mask": attention,
            "position_ids": np.clip(np.cumsum(attention, axis=1) - 1, 0, None),
            "response_mask": _laid_out(self.response_mask, 0, np.int64)[0],
        }
        if self.logprobs is not None:
            found["rollout_log_probs"] = _laid_out(self.logprobs, 0, np.float32)[0]
        return found

    def with_rewards(self) -> Training:
        """The same, once it is certain that every sample has a reward."""
        unknown = np.flatnonzero(np.isnan(self.reward))
        if len(unknown):
            at = int(unknown[0])
            raise BatchError(
                f"{len(unknown)} of {len(self)} samples have no reward, and none is not 0: "
                f"the first is {self.uid[at]!r} (index {self.index[at]}) of step {self.step[at]}",
                causes=["no stage recorded a reward for them", "the recorded reward is NaN"],
                hint='leave them out: where="reward is not None"',
            )
        return self


def _laid_out(
    rows: Sequence[np.ndarray], pad: float, dtype: Any, *, left: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Rows padded to the longest, and where they are."""
    width = max(map(len, rows), default=0)
    found, there = np.full((len(rows), width), pad, dtype), np.zeros((len(rows), width), bool)
    for at, row in enumerate(rows):
        part = slice(width - len(row), width) if left else slice(0, len(row))
        found[at, part], there[at, part] = row, True
    return found, there


@dataclass(frozen=True, slots=True)
class TokenRows:
    """The token rows of some samples of one recording."""

    prompt_ids: list[np.ndarray]
    response_ids: list[np.ndarray]
    response_mask: list[np.ndarray]
    logprobs: list[np.ndarray] | None


def token_rows(opened: Opened, rows: Sequence[int]) -> TokenRows:
    """The tokens of some samples of a recording; an error where it has none."""
    stored = opened.file.stored_columns
    prompt, response, whole = (_ids(opened, role) for role in ("prompt_ids", "response_ids", "token_ids"))
    if response is not None and prompt is not None:
        asked, said = (_cut(opened, name, rows) for name in (prompt, response))
    elif whole is not None:
        asked, said = _apart(opened, whole, rows)
    else:
        raise BatchError(
            "this recording has no token ids to train on: it takes prompts and responses, or both in one row",
            where=opened.recording.where,
            hint=f"columns: {', '.join(stored)}; rolltape.register_role names yours",
        )
    mask = _masks(opened, response or whole or "", rows, said)
    scored = next(
        (n for n in columns_with(stored, *LOGPROBS) if stored[n].is_number and _has_rows(opened, n)), None
    )
    logprobs = None
    if scored is not None:
        found = _cut(opened, scored, rows)
        logprobs = [_fitting(opened, scored, one, a, s) for one, a, s in zip(found, asked, said, strict=True)]
    return TokenRows(asked, said, mask, logprobs)


def _ids(opened: Opened, role: str) -> str | None:
    stored = opened.file.stored_columns
    return next(
        (n for n in columns_with(stored, role) if _has_rows(opened, n) and "float" not in stored[n].dtype),
        None,
    )


def _has_rows(opened: Opened, name: str) -> bool:
    entry = opened.file.stored_columns[name]
    return (
        entry.is_row
        or (entry.kind == "ragged" and not entry.shape)
        or (entry.kind == "array" and entry.shape == (0,))
    )


def _cut(opened: Opened, name: str, rows: Sequence[int]) -> list[np.ndarray]:
    """Some rows of a column, of those with padding the places that are tokens."""
    column = opened.stored.column(name)
    if isinstance(column, RaggedColumn):
        every = column.rows()
        return [decode(np.asarray(every[at]), column.dtype) for at in rows]
    assert isinstance(column, ArrayColumn)
    part = opened.stored.places.part_of(name)
    kept = [slice(None) if part is None else part.tokens.of(at) for at in rows]
    return [decode(column.data[at][one], column.dtype) for at, one in zip(rows, kept, strict=True)]


def _apart(opened: Opened, name: str, rows: Sequence[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Rows that hold the prompt and the response, taken apart where their lengths are known."""
    asked, said = opened.samples.token_counts
    if asked is None or said is None:
        raise BatchError(
            f"column {name!r} holds prompts and responses in one row, and nothing says where responses begin",
            where=opened.recording.where,
            hint="record a response mask, or a column response_length",
        )
    found = _cut(opened, name, rows)
    cut = [int(asked[at]) for at in rows]
    return [row[:at] for row, at in zip(found, cut, strict=True)], [
        row[at:] for row, at in zip(found, cut, strict=True)
    ]


def _masks(opened: Opened, name: str, rows: Sequence[int], said: list[np.ndarray]) -> list[np.ndarray]:
    """Which response tokens are trained on: all, unless a mask says otherwise."""
    trained, tokens = opened.samples.kept(name, trained=True), opened.samples.kept(name)
    width = opened.file.stored_columns[name].width
    found = []
    for at, ids in zip(rows, said, strict=True):
        on = np.ones(len(ids), bool)
        if trained is not None:
            on = _flags(trained.parts[at], width)
            on = on if tokens is None else on[tokens.parts[at]]
        found.append(on[len(on) - len(ids) :] if len(on) >= len(ids) else np.ones(len(ids), bool))
    return found


def _flags(part: slice | np.ndarray, width: int) -> np.ndarray:
    """Places as true and false, one for each of a row."""
    if isinstance(part, np.ndarray):
        return np.asarray(part, bool)
    on = np.zeros(width, bool)
    on[part] = True
    return on


def _fitting(opened: Opened, name: str, found: np.ndarray, asked: np.ndarray, said: np.ndarray) -> np.ndarray:
    """The log-probs of the response, of a row that may have those of the prompt too."""
    if len(found) == len(said):
        return found
    if len(found) in (len(asked) + len(said), len(asked) + len(said) - 1):
        return found[len(found) - len(said) :]
    raise BatchError(
        f"column {name!r} has {len(found)} log-probs for a response of {len(said)} tokens",
        where=opened.recording.where,
        causes=["it belongs to other tokens", "no mask says which of its places are tokens"],
        hint="rolltape check names what does not fit; pool.arrow() has the columns as they are",
    )
