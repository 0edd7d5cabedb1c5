"""Mismatch says how far two computations of log-probs are apart; different kinds are not compared."""

import numpy as np
import pytest

import rolltape
from rolltape.engines import LogprobKind, SamplingParams, mismatch
from tests.engines.test_rollout import rollout


def test_equal_log_probs():
    made = rollout()
    found = mismatch(made, made.logprobs)
    assert (found.max_abs, found.k1, found.k2, found.k3) == (0, 0, 0, 0)
    assert (found.ratio_mean, found.ratio_std, found.effective, found.tokens) == (1, 0, 1, 6)


def test_the_figures():
    made = rollout()
    shift = [np.array([0.1]), np.array([0.0, -0.3]), np.array([0.2]), np.array([0.0, 0.0])]
    found = mismatch(made, [a.astype(np.float64) + b for a, b in zip(made.logprobs, shift, strict=True)])
    flat = np.concatenate(shift)
    ratio = np.exp(flat)
    assert np.allclose(np.concatenate(found.difference), flat)
    assert found.worst == (1, 1)
    assert found.max_abs == pytest.approx(0.3)
    assert found.mean_abs == pytest.approx(0.1)
    assert found.k1 == pytest.approx(0.0)
    assert found.k2 == pytest.approx((flat**2).mean() / 2)
    assert found.k3 == pytest.approx((ratio - 1 - flat).mean())
    assert (found.ratio_min, found.ratio_max) == (pytest.approx(np.exp(-0.3)), pytest.approx(np.exp(0.2)))
    assert found.effective == pytest.approx(ratio.sum() ** 2 / (6 * (ratio**2).sum()))
    assert "completion 1, token 1" in str(found)


def test_the_estimates_estimate_the_divergence():
    """Over many tokens drawn from one distribution, k1 and k3 agree with the KL against another."""
    draw = np.random.default_rng(0)
    p, q = (logits - np.logaddexp.reduce(logits) for logits in (draw.normal(size=20), draw.normal(size=20)))
    tokens = draw.choice(20, 200_000, p=np.exp(p) / np.exp(p).sum())
    made = rollout(prompts=("a",), n=1)
    made.response_ids[0], made.logprobs[0] = tokens, p[tokens].astype(np.float32)
    found = mismatch(made, [q[tokens]])
    exact = float((np.exp(p) * (p - q)).sum())
    assert found.k1 == pytest.approx(exact, rel=0.02)
    assert found.k3 == pytest.approx(exact, rel=0.02)
    assert found.ratio_mean == pytest.approx(1, abs=0.02)


def test_what_is_not_a_number_is_the_worst():
    made = rollout()
    scored = [row.copy() for row in made.logprobs]
    scored[2][0] = np.nan
    found = mismatch(made, scored)
    assert found.worst == (2, 0)
    assert np.isnan(found.max_abs)
    assert np.isnan(found.mean)


def test_different_kinds_are_refused():
    made = rollout(sampling=SamplingParams(n=2, temperature=0.7))
    mismatch(made, made.logprobs)
    with pytest.raises(rolltape.ConfigError, match=r"raw log-probs, but was scored at temperature 0\.7"):
        mismatch(made, made.logprobs, temperature=0.7)
    made = rollout(sampling=SamplingParams(n=2, temperature=0.7), logprob_kind=LogprobKind.PROCESSED)
    mismatch(made, made.logprobs, temperature=0.7)
    with pytest.raises(rolltape.ConfigError, match="processed log-probs, and scoring gave"):
        mismatch(made, made.logprobs)
    made = rollout(sampling=SamplingParams(n=2, top_p=0.9), logprob_kind=LogprobKind.PROCESSED)
    with pytest.raises(rolltape.ConfigError, match=r"top_p 0\.9"):
        mismatch(made, made.logprobs)


def test_what_does_not_belong_together_is_refused():
    made = rollout()
    with pytest.raises(rolltape.BatchError, match="3 completions were scored"):
        mismatch(made, made.logprobs[:3])
    with pytest.raises(rolltape.BatchError, match="completion 1 has 2 tokens, but 1 were scored"):
        mismatch(made, [row[:1] for row in made.logprobs])
    with pytest.raises(rolltape.BatchError, match="no tokens to compare"):
        mismatch(rollout(prompts=()), [])
