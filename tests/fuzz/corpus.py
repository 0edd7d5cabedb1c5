"""What fuzzing starts from: recordings of every layout, and dumps of every kind of value.

A file that once did harm goes into ``tests/fuzz/found``, and is tried first from then on.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from tests.exact import to_bytes

FOUND = Path(__file__).parent / "found"


def batches() -> list[Any]:
    """Values that between them use every layout and every form of plain values."""
    count, rng = 6, np.random.default_rng(0)
    ids, mask = np.zeros((count, 16), np.int64), np.zeros((count, 16), np.int64)
    for row in range(count):
        ids[row, 3 : 5 + row], mask[row, 3 : 5 + row] = rng.integers(1, 99, 2 + row), 1
    responses = rng.integers(1, 99, (count, 8))
    padded = {
        "prompts": ids, "attention_mask": mask, "responses": responses, "copy": ids.copy(),
        "input_ids": np.concatenate([ids, responses], 1), "position_ids": np.tile(np.arange(16), (count, 1)),
        "uid": np.array([f"u{n}" for n in range(count)], object), "score": [0.1 * n for n in range(count)],
        "complex": rng.random((count, 3)) + 1j, "dates": np.array(["2020-01-01"] * count, "M8[D]"),
        "meta": {"pair": (1, 2), "by_number": {3: 4}, "big": np.arange(5000), "set": {1, 2}},
    }  # fmt: skip
    ragged = {
        "lists": [[1] * n for n in range(count)],
        "arrays": [np.zeros((n, 2), np.float32) for n in range(count)],
        "chat": [[{"role": "user", "content": "hi"}]] * count,
        "odd": [{"x": np.arange(n), "y": (1,)} for n in range(count)],
        "texts": [None, "a", "b", "c", "d", "e"],
    }
    records = [{"prompt": f"p{n}", "tokens": [1, 2, n], "mask": np.ones(3, bool)} for n in range(count)]
    return [padded, ragged, records]


def recordings() -> list[bytes]:
    """Recordings to change."""
    return [to_bytes(value) for value in batches()]


def dumps() -> list[bytes]:
    """Dumps to change: what frameworks put into theirs, without their classes."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    values: list[Any] = [
        {"samples": [{"tokens": [1, 2], "reward": 0.5}] * 3, "rollout_id": 7},
        OrderedDict(a=array, b=array[::2], c=np.array(["x", None], object)),
        [
            np.float64(1.5),
            np.int64(3),
            np.dtype("float16"),
            b"bytes",
            bytearray(b"x"),
            {1, 2},
            frozenset({3}),
        ],
        {"text": "ü" * 300, "big": 2**100, "nested": [[[]]], "none": None, "yes": True, "c": 1 + 2j},
    ]
    return [pickle.dumps(value, protocol) for value in values for protocol in (2, 4, 5)] + _tensors()


def _tensors() -> list[bytes]:
    """Files of torch, in its two formats, where it is installed."""
    try:
        import torch
    except ImportError:
        return []
    flat = torch.arange(24, dtype=torch.float32)
    value = {
        "a": flat.view(4, 6)[:, 1:3],
        "b": flat[::2],
        "c": torch.ones(3, dtype=torch.bfloat16),
        "d": [flat],
    }
    made = []
    for zipped in (True, False):
        file = io.BytesIO()
        torch.save(value, file, _use_new_zipfile_serialization=zipped)
        made.append(file.getvalue())
    return made
