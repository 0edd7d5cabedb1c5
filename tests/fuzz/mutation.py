"""Values of another kind in the place of those that were there: what a hostile writer tries first."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np

ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 64, 255, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.5, 1e308,
    "", "a", "x" * 300, "$", "$column", "span", "join", "part", "const", "ramp", "plain", "bytes", "ragged",
    "array", "objects", "tagged", "json", "text", "int64", "float32", "bool", "complex64", "bfloat16",
    "numpy:O", "numpy:<U0", "numpy:V8", "numpy:(9999999,)i4", "numpy:i4,i4", "torch", "jagged", "\x1b[2J",
    "\u202e", "\ud800", [], {}, [[]], [0], [0, 0], [1, -5], [2**62], [2**40, 2**40], [0, 2**62],
    [1] * 70, ["a", "a"],
    {"$tuple": []}, {"$column": "a", "wrap": {"lib": "numpy"}}, {"$whole": "a"}, {"$int": "zz"},
    {"$float": "00"}, {"$range": [0, 1, 0]}, {"$set": [[]]}, {"$decimal": "x"}, {"$timedelta": [10**12]},
    {"$dict": [[{"$tuple": [[]]}, 1]]}, {"$numpy": ["O", ""]}, {"$numpy": ["<U9999999", ""]},
    {"$dtype": "O"}, {"$torch.size": ["a"]}, {"$torch.device": "nowhere"}, {"$torch.dtype": "nn"},
    {"$adapted": "os.system", "parts": "true"}, {"$adapted": 1, "parts": {}}, {"$dataclass": "os.system"},
    {"$enum": "x"}, {"$objects": [2**40], "items": []}, {"$records": None, "fields": {}, "groups": [1]},
    {"$nested": 1}, {"$nested": {"rows": 1}}, {"$list": 1}, {"$unknown": 1},
]  # fmt: skip


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in JSON."""
    found: list[tuple[Any, Any]] = []
    pending = [node]
    while pending:
        at = pending.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        found += [(at, key) for key in keys]
        pending += [at[key] for key in keys]
    return found


def mutate(node: Any, draw: random.Random) -> Any:
    """JSON in which one to four places were replaced, removed, repeated, swapped, nested or renamed."""
    node = copy.deepcopy(node)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        found = places(node)
        if not found:
            return draw.choice(ODD)
        at, key = draw.choice(found)
        other, other_key = draw.choice(found)
        kind = draw.randrange(8)
        if kind <= 2:
            at[key] = copy.deepcopy(draw.choice(ODD))
        elif kind == 3:
            at[key] = copy.deepcopy(other[other_key])
        elif kind == 4:
            del at[key]
        elif kind == 5 and isinstance(at[key], int):
            at[key] += draw.choice([-1, 1, 7, 2**20, 2**40, -(2**33)])
        elif kind == 6 and isinstance(at, dict):
            at[draw.choice([str(other_key), "$tuple", "extra"])] = at.pop(key)
        else:
            for _ in range(draw.choice([1, 5, 300, 3000])):
                at[key] = [at[key]]
    return node


def flip(data: bytes, draw: random.Random) -> bytes:
    """Bytes of which some were changed, cut out or repeated."""
    changed = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 8])):
        if not changed:
            break
        at = draw.randrange(len(changed))
        kind = draw.randrange(5)
        if kind <= 1:
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == 2:
            changed[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 3:
            del changed[at : at + draw.choice([1, 4, 100])]
        else:
            changed[at:at] = changed[at : at + draw.choice([1, 8, 200])]
    return bytes(changed)


def bulky(draw: random.Random) -> Any:
    """A value of very many small parts: what takes the square of their number ends here, not at a user's."""
    count = draw.choice([300, 2000, 8000])
    few = draw.choice([1, 2, 3])
    kinds: list[Callable[[], Any]] = [
        lambda: {f"c{n}": [n] * few for n in range(count)},
        lambda: {f"c{n}": np.full((few, 1 + n % draw.choice([1, 2, 7])), n % 9) for n in range(count)},
        lambda: {f"c{n}": np.zeros((few, 1 + n % 5), draw.choice(["i8", "f4"])) for n in range(count)},
        lambda: {f"c{n}": np.arange(n % 50) for n in range(count)},
        lambda: {chr(0xD800 + n % 2048) + chr(0xD800 + n // 2048): [n] * few for n in range(count)},
        lambda: {f"g{n}": {"a.b": [1] * few, "a_b": [2] * few} for n in range(count)},
        lambda: [{f"c{n}": n for n in range(count)}] * few,
        lambda: [{"a": n, "b": {"c": (n, str(n))}} for n in range(count)],
        lambda: [{f"k{n}": n} for n in range(count)],
        lambda: {"x": [{n, -n} for n in range(count)], "y": {n: n for n in range(count)}},
        lambda: {"uid": ["u"] * count, "prompt": [[{"role": "user"}]] * count, "index": [0] * count},
        lambda: _nested(draw.choice([2, 5, 8]), draw.choice([2, 4, 6])),
        lambda: [[{"a": np.arange(3)}] * few] * count,
    ]
    return draw.choice(kinds)()


def _nested(width: int, depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {f"k{n}": value for n in range(width)}
    return [value] * 3


NAMES = [
    ("builtins", "complex"), ("builtins", "set"), ("builtins", "frozenset"), ("builtins", "bytearray"),
    ("collections", "OrderedDict"), ("collections", "defaultdict"), ("_codecs", "encode"), ("_io", "BytesIO"),
    ("numpy", "dtype"), ("numpy", "ndarray"), ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"), ("numpy._core.numeric", "_frombuffer"), ("os", "system"),
]  # fmt: skip

PUSHES = [
    b"N", b"\x88", b"\x89", b")", b"]", b"}", b"\x8f", b"K\x00", b"K\x07", b"J\xff\xff\xff\xff", b"K\x01\x85",
    b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"G\x7f\xf8\x00\x00\x00\x00\x00\x00", b"C\x02ab",
    b"X\x02\x00\x00\x00i8", b"X\x01\x00\x00\x00O", b"X\x00\x00\x00\x00", b"X\x01\x00\x00\x00C", b"U\x01x",
]  # fmt: skip

TURNS = [
    b"a", b"b", b"s", b"R", b"\x81", b"\x85", b"\x86", b"\x87", b"2", b"0", b"Q", b"\x94", b"(", b"t", b"e",
    b"u", b"\x90", b"\x91", b"1", b"\x93",
]  # fmt: skip


def program(draw: random.Random) -> bytes:
    """A pickle of instructions in any order, with what was made before used again and again."""
    made, kept = [b"\x80\x04"], 0
    for _ in range(draw.choice([5, 20, 80])):
        kind = draw.random()
        if kind < 0.45:
            made.append(draw.choice(PUSHES))
        elif kind < 0.55:
            made.append(("c{}\n{}\n".format(*draw.choice(NAMES))).encode())
        elif kind < 0.75 and kept:
            made.append(b"h%c" % draw.randrange(kept) * draw.choice([1, 2, 10]))
        elif kind < 0.85 and kept < 250:
            made.append(b"q%c" % kept)
            kept += 1
        else:
            made.append(draw.choice(TURNS))
    return b"".join(made) + b"."
