"""What may be asked of sampling, and the random numbers each completion has for itself."""

import numpy as np
import pytest

import rolltape
from rolltape.engines import LogprobKind, SamplingParams, seed_for
from rolltape.engines.api.sampling import uniforms
from rolltape.engines.transformers.tensor_inputs import plan_batches


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0), ("n", 1.5), ("n", True), ("temperature", -1.0), ("temperature", float("nan")),
        ("temperature", float("inf")), ("top_p", 0.0), ("top_p", 1.1), ("top_k", -1), ("max_tokens", 0),
        ("min_tokens", -1), ("min_tokens", 300), ("stop", [""]), ("stop", [3]), ("stop_token_ids", [-1]),
        ("stop_token_ids", ["x"]), ("seed", 1.0), ("top_logprobs", -1),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_named(name, value):
    with pytest.raises(rolltape.ConfigError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.where == f"SamplingParams.{name}"
    assert caught.value.what.startswith(f"{name} must be ")


def test_an_unknown_kind_of_log_prob_is_refused():
    with pytest.raises(rolltape.ConfigError, match="raw, processed"):
        SamplingParams(logprobs="normalized")
    assert SamplingParams(logprobs="processed").logprobs is LogprobKind.PROCESSED


def test_seeds_differ_by_prompt_and_completion_and_stay_the_same():
    seeds = {seed_for(seed, uid, index) for seed in (0, 1) for uid in "ab" for index in range(16)}
    assert len(seeds) == 64
    assert seed_for(7, "prompt", 3) == 1118215781
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_random_numbers_do_not_depend_on_how_many_are_drawn():
    assert (uniforms(1, "a", 0, 100)[:10] == uniforms(1, "a", 0, 10)).all()
    many = uniforms(1, "a", 0, 100_000)
    assert 0 <= many.min() < 1e-3
    assert 0.999 < many.max() < 1
    assert abs(many.mean() - 0.5) < 0.01


def test_batches_keep_to_the_budget_and_leave_nothing_out():
    draw = np.random.default_rng(0)
    for _ in range(200):
        count = int(draw.integers(1, 12))
        lengths, sizes, room = (draw.integers(1, 40, count).tolist() for _ in range(3))
        budget = int(draw.integers(1, 2000))
        batches = plan_batches(lengths, sizes, room, budget)
        for batch in batches:
            rows = sum(len(share) for share in batch)
            width = max(lengths[share.prompt] for share in batch) + max(room[share.prompt] for share in batch)
            assert rows * width <= budget or rows == 1
        found = sorted((s.prompt, i) for batch in batches for s in batch for i in range(s.start, s.stop))
        assert found == [(prompt, i) for prompt in range(count) for i in range(sizes[prompt])]
