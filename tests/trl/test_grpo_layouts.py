"""The reference trainer: every layout lays out every sample once, and computes the same log-probs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rolltape.examples.grpo.layouts import LAYOUTS, Sample, micro_batches
from rolltape.examples.grpo.loss import log_probs
from rolltape.examples.grpo.model import WORDS, make_model


@pytest.fixture(scope="module")
def samples():
    random = np.random.default_rng(0)
    lengths = random.integers(1, 9, 13)
    return [Sample(random.integers(2, len(WORDS), 2 + length), 2) for length in lengths]


@pytest.fixture(scope="module")
def policy():
    return make_model(0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 4, 13])
@pytest.mark.parametrize("budget", [10, 33, 1000])
def test_every_sample_is_in_one_forward_pass(samples, layout, size, budget):
    micros = list(micro_batches(samples, layout, size, budget))
    assert sorted(row for micro in micros for row in micro.rows) == list(range(len(samples)))
    for micro in micros:
        for row, (line, start) in zip(micro.rows, micro.places, strict=True):
            tokens = micro.tokens[line, start : start + len(samples[row].tokens)]
            np.testing.assert_array_equal(tokens.numpy(), samples[row].tokens)
            positions = micro.positions[line, start : start + len(samples[row].tokens)]
            assert positions.tolist() == list(range(len(samples[row].tokens)))


def computed(policy, samples, layout, size=4, budget=33):
    found = {}
    with torch.no_grad():
        for micro in micro_batches(samples, layout, size, budget):
            found |= dict(zip(micro.rows, log_probs(policy, micro, samples), strict=True))
    return [found[row].numpy() for row in range(len(samples))]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_log_probs_are_those_of_each_sample_alone(policy, samples, layout):
    alone = computed(policy, samples, "padded", size=1)
    for a, b in zip(alone, computed(policy, samples, layout), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_no_sample_sees_another(policy, samples):
    before = computed(policy, samples, "packed", budget=1000)
    changed = [
        Sample((sample.tokens % 25) + 2 if at == 0 else sample.tokens, 2) for at, sample in enumerate(samples)
    ]
    after = computed(policy, changed, "packed", budget=1000)
    assert not np.array_equal(before[0], after[0])
    for a, b in zip(before[1:], after[1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_an_unknown_layout_is_refused(samples):
    with pytest.raises(ValueError, match="layout 'round'"):
        list(micro_batches(samples, "round", 1, 1))
