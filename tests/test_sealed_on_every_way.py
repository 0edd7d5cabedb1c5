"""A header with one wrong value, sealed again, is an error of ours on every way of reading."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.errors import RolltapeError
from rolltape.index.index_building import build_index
from tests.resealing import header_of, with_header

EVIL = (
    None, True, -1, 2**31, 2**200, -(2**63), 1e308, "", "x" * 70_000, "../..", "\x00", [], [[]], {},
    {"a": {}}, [0] * 1000, "int64", "float8_e8m0fnu", "ragged", "join",
)  # fmt: skip
CASES = 150


def batch() -> dict[str, Any]:
    """Columns of every kind: derived, padded, ragged, values, arrays beside the samples."""
    mask = np.array([[1] * k + [0] * (12 - k) for k in (3, 5, 12, 1, 7, 2)])
    every = np.concatenate([np.ones((6, 4), np.int64), mask], 1)
    return {
        "uid": list("aabbcc"), "prompts": np.arange(24).reshape(6, 4), "response_mask": mask,
        "responses": np.arange(72).reshape(6, 12) * mask, "attention_mask": every,
        "position_ids": np.cumsum(every, 1) - 1, "rewards": np.linspace(0, 1, 6, dtype=np.float32),
        "logprobs": [np.linspace(-1, 0, k).astype(np.float32) for k in (3, 5, 12, 1, 7, 2)],
        "messages": [[{"role": "user", "content": f"x{at}"}] for at in range(6)], "weights": np.eye(3),
    }  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a header, of lists the first three."""
    yield path
    inner = node.items() if isinstance(node, dict) else enumerate(node[:3]) if isinstance(node, list) else ()
    for key, child in inner:
        yield from places(child, (*path, key))


def changed(header: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    found = at = copy.deepcopy(header)
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return found


def replayed(tape: Path) -> Any:
    with rolltape.Tape(tape, mode="replay") as opened, opened.step(0):
        return opened.stage("rollout")(lambda: None)()


def looked_at_later(tape: Path) -> Any:
    with rolltape.Tape(tape, mode="replay", lazy=True) as opened, opened.step(0):
        found = opened.stage("rollout")(lambda: None)()
        return {name: found[name] for name in found} if isinstance(found, dict) else found


def without_padding(tape: Path) -> Any:
    recording = next(iter(rolltape.open(tape).recordings("rollout")))
    return recording.jagged(["position_ids"], like="attention_mask")


def read_by_column(tape: Path) -> Any:
    samples = rolltape.open(tape).samples(0)
    return [samples.columns[name] for name in samples.columns], samples.ids, samples.token_counts


def indexed(tape: Path) -> Any:
    return build_index(rolltape.open(tape))


WAYS = (replayed, looked_at_later, without_padding, read_by_column, indexed)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_one_wrong_value_is_an_error_of_ours(way: Callable[[Path], Any], tmp_path: Path) -> None:
    tape = tmp_path / "tape"
    with rolltape.Tape(tape, mode="record") as opened, opened.step(0):
        opened.stage("rollout")(batch)()
    way(tape)
    file = tape / "train/rollout/step_000000.parquet"
    data = file.read_bytes()
    header = header_of(data)
    cases = [(path, value) for path in places(header) for value in EVIL]
    random.Random(0).shuffle(cases)
    refused = 0
    for path, value in cases[:CASES]:
        file.write_bytes(with_header(data, json.dumps(changed(header, path, value))))
        try:
            way(tape)
        except RolltapeError:
            refused += 1
    assert refused > CASES // 4 or way in (without_padding, indexed)  # they read less, or pass it over
