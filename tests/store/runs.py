"""A small training run on a tape, for the tests of stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import rolltape


def batch_of(step: int, rows: int = 16) -> dict[str, Any]:
    """What is generated at a step."""
    rng = np.random.default_rng(step)
    return {
        "ids": rng.integers(0, 50_000, (rows, 24)),
        "logprobs": rng.standard_normal((rows, 24)).astype(np.float32),
        "text": [f"{step} {row}" for row in range(rows)],
    }


def train(
    url: str,
    mode: str,
    steps: Iterable[int],
    each: Callable[[int], None] = lambda step: None,
    *,
    flush: bool = False,
    **options: Any,
) -> rolltape.Summary:
    """Record or replay steps; every batch is compared with what was generated. ``each`` is told the step."""

    def generate(step: int) -> dict[str, Any]:
        assert mode != "replay"
        return batch_of(step)

    with rolltape.Tape(url, mode=mode, **options) as tape:
        stage = tape.stage("rollout", inputs=True)(generate)
        for step in steps:
            with tape.step(step):
                found = stage(step)
                assert_same(found, batch_of(step))
                tape.log({"loss": step / 7})
            if flush:
                tape.flush()
            each(step)
    return tape.summary()


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype
            assert found[name].tobytes() == value.tobytes()
        else:
            assert list(found[name]) == value


def assert_whole(url: str, steps: Iterable[int]) -> None:
    """Every step and its metrics are on the tape, once."""
    run = rolltape.open(url)
    steps = list(steps)
    assert run.steps("rollout") == steps
    assert run.metrics() == {step: {"loss": step / 7} for step in steps}
    for step in steps:
        assert_same(run.recording(rolltape.Key(step=step)).value(), batch_of(step))
    lines = bytes(run.storage.read("train/metrics.jsonl")).splitlines()
    assert len(lines) == len(steps)
