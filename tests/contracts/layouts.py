"""One batch in every layout and under every name that trainers use: its tokens are the same in all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rolltape.batch.roles import names_of

PROMPTS = ([11, 12], [13], [14, 15, 16], [17, 18])
RESPONSES = ([21, 22, 0], [23, 24, 25, 26, 0], [27], [0, 28, 29])
"""Some end with 0, which is the padding too, and one begins with it: only a mask tells that it is a token."""
UIDS = ["a", "a", "b", "b"]
LENGTHS = [3, 5, 1, 3]


def padded(rows: Any, width: int, *, left: bool = False, pad: int = 0) -> np.ndarray:
    """Rows in a rectangle."""
    found = np.full((len(rows), width), pad, np.int64)
    for at, row in enumerate(rows):
        found[at, width - len(row) if left else 0 : width if left else len(row)] = row
    return found


def on(rows: Any, width: int, *, left: bool = False, kind: Any = np.int64) -> np.ndarray:
    """The mask of such a rectangle."""
    return padded([[1] * len(row) for row in rows], width, left=left).astype(kind)


def logps(width: int, *, left: bool = False) -> np.ndarray:
    """Numbers for every token, and none for padding."""
    rows = [[-0.5 - at - place / 8 for place in range(n)] for at, n in enumerate(LENGTHS)]
    found = np.zeros((len(rows), width), np.float32)
    for at, row in enumerate(rows):
        found[at, width - len(row) if left else 0 : width if left else len(row)] = row
    return found


def separate(mask: str, wide: int = 0, *, left: bool = False, kind: Any = np.int64) -> dict[str, Any]:
    """Responses and a mask of the same width."""
    width = 6 + wide
    return {
        "uid": UIDS,
        "responses": padded(RESPONSES, width, left=left),
        mask: on(RESPONSES, width, left=left, kind=kind),
        "log_probs": logps(width, left=left),
    }


def with_prompts(mask: str, wide: int = 0) -> dict[str, Any]:
    """As TRL has it: prompts and completions apart, each with a mask."""
    width = 4 + wide
    return {
        "uid": UIDS,
        "prompt_ids": padded(PROMPTS, width, left=True),
        "prompt_mask": on(PROMPTS, width, left=True),
        "completion_ids": padded(RESPONSES, 6 + wide),
        mask: on(RESPONSES, 6 + wide),
        "log_probs": logps(6 + wide),
    }


def like_verl(mask: str, wide: int = 0) -> dict[str, Any]:
    """As verl has it: prompts, responses, both in one row, and an attention mask over that."""
    p, r = 4 + wide, 6 + wide
    prompts, responses = padded(PROMPTS, p, left=True), padded(RESPONSES, r)
    both = np.concatenate([on(PROMPTS, p, left=True), on(RESPONSES, r)], axis=1)
    return {
        "uid": UIDS,
        "prompts": prompts,
        "responses": responses,
        "input_ids": np.concatenate([prompts, responses], axis=1),
        "attention_mask": both,
        "position_ids": np.maximum(np.cumsum(both, axis=1) - 1, 0),
        mask: on(RESPONSES, r),
        "log_probs": logps(r),
    }


def over_the_whole_row(mask: str, wide: int = 0) -> dict[str, Any]:
    """As ROLL has it: the mask of the response is as wide as prompt and response together."""
    found = like_verl(mask, wide)
    p, r = 4 + wide, 6 + wide
    found[mask] = np.concatenate([np.zeros((4, p), np.int64), on(RESPONSES, r)], axis=1)
    return found


def one_row(mask: str, wide: int = 0) -> dict[str, Any]:
    """Prompt and response in one row, and a mask that is on for the response."""
    width = 10 + wide
    rows = [[*p, *r] for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    trained = padded([[0] * len(p) + [1] * len(r) for p, r in zip(PROMPTS, RESPONSES, strict=True)], width)
    return {"uid": UIDS, "input_ids": padded(rows, width), "attention_mask": on(rows, width), mask: trained}


def one_row_without_attention(mask: str, wide: int = 0) -> dict[str, Any]:
    """The same, and nothing but the mask of the response tells a last token from the padding it equals."""
    found = one_row(mask, wide)
    del found["attention_mask"]
    return found


def one_list(mask: str, wide: int = 0) -> dict[str, Any]:
    """Prompt and response in one list, and a mask of the same length."""
    pairs = list(zip(PROMPTS, RESPONSES, strict=True))
    trained = [[0] * len(p) + [1] * len(r) for p, r in pairs]
    return {"uid": UIDS, "input_ids": [[*p, *r] for p, r in pairs], mask: trained}


def like_openrlhf(mask: str, wide: int = 0) -> dict[str, Any]:
    """As OpenRLHF has it: sequences, their attention mask, and a mask as wide as the response."""
    found = like_verl(mask, wide)
    wanted = {"uid": "uid", "input_ids": "sequences", "attention_mask": "attention_mask", mask: mask}
    return {new: found[old] for old, new in wanted.items()} | {"log_probs": logps(6 + wide)}


def lists(mask: str, wide: int = 0) -> dict[str, Any]:
    """Without padding: a list for each sample."""
    return {
        "uid": UIDS,
        "responses": [list(row) for row in RESPONSES],
        mask: [[1] * len(row) for row in RESPONSES],
        "log_probs": [[-0.5 - at - place / 8 for place in range(n)] for at, n in enumerate(LENGTHS)],
    }


LAYOUTS: dict[str, Callable[..., dict[str, Any]]] = {
    "responses": separate,
    "left": lambda mask, wide=0: separate(mask, wide, left=True),
    "bool": lambda mask, wide=0: separate(mask, wide, kind=np.bool_),
    "float": lambda mask, wide=0: separate(mask, wide, kind=np.float32),
    "prompts": with_prompts,
    "verl": like_verl,
    "roll": over_the_whole_row,
    "one row": one_row,
    "one row alone": one_row_without_attention,
    "one list": one_list,
    "openrlhf": like_openrlhf,
    "lists": lists,
}


def cases() -> Iterator[tuple[str, str]]:
    """Every layout with every name of a mask."""
    return ((layout, mask) for layout in LAYOUTS for mask in names_of("response_mask"))
