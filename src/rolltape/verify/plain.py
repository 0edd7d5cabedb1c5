"""Plain values: whether two are the same, what Python's floats were, how texts are shown."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np


def made_as(*floats: float) -> str:
    """The dtype that Python's floats come from: most are single floats that it holds as doubles."""
    array = np.array(floats)
    with np.errstate(all="ignore"):
        single = (array.astype(np.float32) == array) | np.isnan(array)
    return "float32" if single.all() else "float64"


def same(a: Any, b: Any) -> bool:
    """Whether two plain values are the same, types and the bits of floats included.

    >>> same([1, {"x": float("nan")}], [1, {"x": float("nan")}]), same(0.0, -0.0), same(1, True)
    (True, False, False)
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, np.generic):
        return bool(a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    return bool(a == b)


def visible(text: str, keep: str = "") -> str:
    r"""The text with everything that is not seen, or turns what is seen around, written out.

    >>> visible("a\u202eb\n"), visible("a\n", keep="\n")
    ('a\\u202eb\\n', 'a\n')
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
