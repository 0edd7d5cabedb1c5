"""Arrays of every dtype and memory layout, and padded batches like those trainers pass around."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

DTYPES = "? b B h H i I l L q Q e f d F D g G M8[ns] m8[s] M8 U3 S4 V6 >i4 >f8 >u2 >c8 >U2 >M8[us]".split()


def random_array(seed: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random bits: NaN payloads, -0.0, infinities and denormals are all among them."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if dtype == "?":
        return np.asarray(rng.random(shape) < 0.5)
    if kind.kind == "U":
        letters = np.array(["", "a", "\0b", "é", "😀", "\ud800"])
        return np.asarray(letters[rng.integers(0, 6, shape)]).astype(kind)
    size = int(np.prod(shape))
    data = np.frombuffer(rng.bytes(size * kind.itemsize), np.uint8)
    data = np.where(rng.random(data.size) < 0.3, np.uint8(0), data).astype(np.uint8)
    return data.view(kind).reshape(shape) if size else np.empty(shape, kind)


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
any_dtype = st.sampled_from(DTYPES)
a_few = st.integers(1, 6)


@st.composite
def views(draw: Any, shape: Any = shapes, dtypes: Any = any_dtype) -> np.ndarray:
    """An array as a view: transposed, sliced, reversed, broadcast, or as it is."""
    array = random_array(draw(st.integers(0, 2**32)), draw(dtypes), draw(shape))
    how = draw(
        st.sampled_from(["as is", "fortran", "transposed", "sliced", "reversed", "broadcast", "read-only"])
    )
    if how == "fortran":
        return np.asfortranarray(array)
    if how == "transposed":
        return array.transpose(draw(st.permutations(range(array.ndim))))
    if how == "sliced":
        wide = np.repeat(np.repeat(array, 2, axis=-1), 2, axis=0) if array.ndim else array
        return wide[..., ::2][::2] if array.ndim > 1 else wide[::4] if array.ndim else wide
    if how == "reversed":
        return array[tuple(slice(None, None, -1) for _ in range(array.ndim))]
    if how == "broadcast" and array.ndim:
        return np.broadcast_to(array[:1], array.shape) if len(array) else array
    if how == "read-only":
        array.flags.writeable = False
    return array


@st.composite
def padded(draw: Any, samples: int, width: int) -> np.ndarray:
    """Rows with padding on the left, the right or both sides; the pad value may occur inside too."""
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    array = random_array(seed, draw(st.sampled_from("bBhilLefdFD?")), (samples, width))
    if draw(st.booleans()) and array.dtype.kind in "iu":
        array = rng.integers(0, 4, array.shape).astype(array.dtype)
    start, stop = bounds(draw, samples, width)
    left, right = (_pad(array.dtype, draw(st.integers(0, 5)), rng) for _ in range(2))
    for row, low, high in zip(array, start, stop, strict=True):
        row[:low] = left
        row[high:] = right
    return array


def bounds(draw: Any, samples: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Where rows begin and end; some are empty, some are full."""
    sides = draw(st.sampled_from(["left", "right", "both", "none"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    cuts = np.sort(rng.integers(0, width + 1, (2, samples)), axis=0)
    start = cuts[0] if sides in ("left", "both") else np.zeros(samples, int)
    stop = cuts[1] if sides in ("right", "both") else np.full(samples, width)
    return start, np.maximum(start, stop)


def _pad(dtype: np.dtype, choice: int, rng: np.random.Generator) -> Any:
    if dtype.kind in "fc":
        nan = np.frombuffer(rng.bytes(dtype.itemsize), dtype)[0]
        return [0.0, -0.0, np.nan, -np.inf, nan, 1.0][choice]
    return dtype.type([0, 1, 2, 3, 100, 127][choice])


@st.composite
def rollouts(draw: Any, samples: Any = a_few) -> dict[str, Any]:
    """A batch as verl makes it: columns that can be derived from one another, in any order."""
    n, p, r = draw(samples), draw(st.integers(1, 6)), draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    pad, top = draw(st.sampled_from([0, 1, 7])), draw(st.sampled_from([3, 150_000]))
    ids = rng.integers(0, top, (n, p + r))
    start = rng.integers(0, p + 1, n)
    stop = p + rng.integers(0, r + 1, n)
    at = np.arange(p + r)
    mask = (at >= start[:, None]) & (at < stop[:, None])
    ids = np.where(mask, ids, pad)
    running = np.maximum(at - start[:, None], 0)
    held = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    integer = draw(st.sampled_from(["i8", "i4", "i2" if top == 3 else "u4"]))
    batch = {
        "prompts": ids[:, :p].astype(integer),
        "responses": ids[:, p:].astype(integer),
        "input_ids": ids.astype(integer),
        "attention_mask": mask.astype(draw(st.sampled_from(["i8", "?", "f4", "u1"]))),
        "response_mask": mask[:, p:].astype("i8"),
        "position_ids": (held if draw(st.booleans()) else running).astype(
            draw(st.sampled_from(["i8", "i4", "u1"]))
        ),
        "old_log_probs": np.where(
            mask[:, p:], rng.standard_normal((n, r)), draw(st.sampled_from([0.0, -0.0]))
        ),
        "token_level_scores": np.where(at[p:] == stop[:, None] - 1, rng.standard_normal((n, 1)), 0).astype(
            "f4"
        ),
        "uid": np.array([f"u{i // 2}" for i in range(n)], object),
    }
    batch["advantages"] = batch["old_log_probs"].astype("f4")
    batch["returns"] = batch["advantages"].copy()
    batch["last"] = batch["responses"][:, -1:].copy()
    names = draw(st.permutations(sorted(batch)))
    return {name: batch[name] for name in names[: draw(st.integers(1, len(names)))]}
