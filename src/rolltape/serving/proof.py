"""Whether the typed columns of recorded calls are what their bytes say: read off once more, and compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rolltape.serving.asked import BadBody, parse_body
from rolltape.serving.call import read_typed, untyped
from rolltape.serving.dialects import find
from rolltape.tape.recording import Recording

_NEEDS = ("method", "path", "request_body", "response_body", "response_headers")


def differing(recording: Recording) -> Iterator[tuple[int, str]]:
    """The calls whose typed columns differ from their bytes, each with the first column that does."""
    if not set(_NEEDS) <= set(recording.columns):
        return
    read, nothing = recording.batch(), untyped()  # a call that could not be typed has its bytes alone
    for row in range(recording.samples):
        one = {name: column[row] for name, column in read.columns.items()}
        dialect, asked = find(one["method"], one["path"]), _parsed(bytes(one["request_body"]))
        typed = read_typed(dialect, asked, one["response_headers"] or {}, bytes(one["response_body"]))
        differ = [name for name, value in typed.items() if name in one and not _same(value, one[name])]
        if differ and not all(_same(value, one.get(name)) for name, value in nothing.items()):
            yield row, differ[0]


def _parsed(body: bytes) -> Any:
    try:
        return parse_body(body) if body else None
    except BadBody:
        return None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.asarray(a).tobytes() == np.asarray(b).tobytes()
    return bool(a == b) or (a != a and b != b)
