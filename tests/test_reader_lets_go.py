"""What was read of a step is let go with the step: no cycle keeps it until the garbage is collected."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import rolltape


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("whole", [True, False])
def test_samples_are_freed_at_once(tmp_path, no_collector, whole):
    value = {
        "uid": ["a", "b"],
        "responses": np.array([[1, 2, 0], [1, 0, 0]]),
        "response_mask": np.array([[1, 1, 0], [1, 0, 0]]),
        "log_probs": np.zeros((2, 3), np.float32),
    }
    with rolltape.Tape(tmp_path / "t", mode="record", background=False) as tape, tape.step(0):
        tape.stage("rollout")(value.copy)()
    samples = rolltape.open(tmp_path / "t").samples(0, whole=whole)
    assert samples.columns["responses"].samples == 2
    assert samples.kept("log_probs", trained=True).counts.tolist() == [2, 1]
    assert samples.token_counts[1].tolist() == [2, 1]
    assert samples.cells("log_probs")
    watched = [weakref.ref(one) for one in (samples, samples.files[0], samples.columns)]
    del samples
    assert [one() for one in watched] == [None, None, None]
