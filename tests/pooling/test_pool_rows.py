"""The rows of a pool are those of its recordings, bit for bit, and its filters do what they say."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from tests.pooling.random_tapes import Known, make_tapes

CASES = 20


def _compare(value: Any, test: Any) -> bool | None:
    return None if value is None else test(value)


def _all(*parts: bool | None) -> bool | None:
    return False if False in parts else None if None in parts else True


def _any(*parts: bool | None) -> bool | None:
    return True if True in parts else None if None in parts else False


def _not(part: bool | None) -> bool | None:
    return None if part is None else not part


def rates(known: list[Known]) -> dict[str, float | None]:
    """The pass rate of each prompt, the slow way."""
    found: dict[str, float | None] = {}
    for prompt in {row.prompt for row in known}:
        scored = [row.reward for row in known if row.prompt == prompt and row.reward is not None]
        found[prompt] = sum(one >= 1 for one in scored) / len(scored) if scored else None
    return found


def a_filter(draw: random.Random, rate: dict[str, float | None]) -> tuple[str, Any]:
    """An expression, and the same as a function of what the test knows."""
    low, step, tokens = draw.choice((0.0, 0.25, 0.5)), draw.randint(0, 20), draw.randint(1, 8)
    simple: list[tuple[str, Any]] = [
        (f"reward > {low}", lambda row: _compare(row.reward, lambda v: v > low)),
        (f"reward == {low}", lambda row: _compare(row.reward, lambda v: v == low)),
        ("reward is None", lambda row: row.reward is None),
        (f"{low} <= pass_rate < 1", lambda row: _compare(rate[row.prompt], lambda v: low <= v < 1)),
        ("truncated", lambda row: row.truncated),
        ("finish in ('stop', 'abort')", lambda row: _compare(row.finish, lambda v: v in ("stop", "abort"))),
        ("finish not in ('stop',)", lambda row: _compare(row.finish, lambda v: v != "stop")),
        (f"version <= {step}", lambda row: _compare(row.version, lambda v: v <= step)),
        (f"policy <= {step}", lambda row: (row.step if row.version is None else row.version) <= step),
        (f"step != {step}", lambda row: row.step != step),
        (f"tokens > {tokens}", lambda row: row.tokens > tokens),
        (f"marker >= {step}", lambda row: row.marker >= step),
        ("split == 'val'", lambda row: False),
    ]
    (a, p), (b, q), (c, r) = (draw.choice(simple) for _ in range(3))
    return draw.choice(
        [
            (a, p),
            (f"not ({a})", lambda row: _not(p(row))),
            (f"{a} and {b} and {c}", lambda row: _all(p(row), q(row), r(row))),
            (f"({a}) or not ({b} and {c})", lambda row: _any(p(row), _not(_all(q(row), r(row))))),
        ]
    )


def test_rows_and_filters_of_random_tapes(tmp_path: Path) -> None:
    matched = 0
    for seed in range(CASES):
        draw = random.Random(f"filters {seed}")
        tapes, known = make_tapes(tmp_path / str(seed), seed)
        pool = rolltape.pool([str(tape) for tape in tapes])
        assert pool.opened == 0, "what is known is known without opening a recording"
        assert [int(uid) for uid in pool.facts["uid"].to_pylist()] == [row.marker for row in known]
        rate = rates(known)
        assert pool.facts["pass_rate"].to_pylist() == [rate[row.prompt] for row in known]
        for _ in range(6):
            text, truth = a_filter(draw, rate)
            wanted = [row for row in known if truth(row) is True]
            found = pool.where(text)
            assert [int(uid) for uid in found.facts["uid"].to_pylist()] == [w.marker for w in wanted], text
            matched += len(wanted)
            if wanted:
                order = draw.sample(range(len(wanted)), draw.randint(1, len(wanted)))
                same_rows(found.take(order), [wanted[at] for at in order])
    assert matched > 10 * CASES


def same_rows(pool: rolltape.Pool, known: list[Known]) -> None:
    """Every form of these rows has what was recorded."""
    training = pool.training()
    assert training.logprobs is not None
    table = pool.arrow(["marker", "prompt", "rollout_log_probs", "reward"])
    assert table["marker"].to_pylist() == [row.marker for row in known]
    assert table["prompt"].to_pylist() == [row.prompt for row in known]
    for at, row in enumerate(known):
        assert tuple(training.prompt_ids[at]) == row.prompt_ids
        assert tuple(training.response_ids[at]) == row.response_ids
        assert training.logprobs[at].tobytes() == row.logprobs
        assert training.response_mask[at].all()
        assert np.float32(table["rollout_log_probs"][at].values.to_numpy()).tobytes() == row.logprobs
        assert table["reward"][at].as_py() == row.reward == pool[at]["reward"]
        assert np.isnan(training.reward[at]) if row.reward is None else training.reward[at] == row.reward
        assert training.version[at] == (row.step if row.version is None else row.version)
        assert pool[at]["marker"] == row.marker
    padded = training.padded(pad=0)
    for at, row in enumerate(known):
        assert padded["responses"][at, : row.response_tokens].tolist() == list(row.response_ids)
        assert padded["attention_mask"][at].sum() == row.tokens
        scores = padded["rollout_log_probs"][at, : row.response_tokens]
        assert scores.tobytes() == row.logprobs


def test_recorded_is_the_object_of_the_stage_bit_for_bit(tmp_path: Path) -> None:
    for seed in range(6):
        tapes, known = make_tapes(tmp_path / str(seed), seed)
        draw = random.Random(seed)
        pool = rolltape.pool(str(tapes[0]))
        mine = [row for row in known if row.tape == 0]
        order = draw.sample(range(len(mine)), len(mine))
        found = pool.take(order).recorded(pad=0)
        assert list(found["marker"]) == [mine[at].marker for at in order]
        assert list(found["finish_reason"]) == [mine[at].finish for at in order]
        for at, place in enumerate(order):
            row, scores = mine[place], np.asarray(found["rollout_log_probs"][at], np.float32)
            assert scores[: row.response_tokens].tobytes() == row.logprobs
            assert not scores[row.response_tokens :].any()


@pytest.mark.parametrize("together", ["group", "prompt", None])
def test_batches_keep_together_what_belongs_together(tmp_path: Path, together: str | None) -> None:
    for seed in (1, 3):
        tapes, known = make_tapes(tmp_path / f"{together}{seed}", seed)
        pool = rolltape.pool([str(tape) for tape in tapes])
        for size, shuffle in itertools.product((1, 4, 7), (None, 3)):
            batches = [b.facts.to_pylist() for b in pool.batches(size, seed=shuffle, together=together)]
            again = [b.facts.to_pylist() for b in pool.batches(size, seed=shuffle, together=together)]
            assert batches == again, "the same seed, the same batches"
            every = [row["uid"] for batch in batches for row in batch]
            assert sorted(every) == sorted(str(row.marker) for row in known), "every sample once"
            prompts = {str(row.marker): row.prompt for row in known}
            for batch in batches:
                names = {prompts[row["uid"]] for row in batch}
                assert len(batch) <= size or (len(names) == 1 and together == "prompt")
            if together == "prompt":
                homes = [{prompts[row["uid"]] for row in batch} for batch in batches]
                assert sum(map(len, homes)) == len(set(prompts.values())), "a prompt is in one batch"
        whole = [len(b) for b in pool.batches(4, together=None, drop_last=True)]
        assert whole == [4] * (len(known) // 4)
    orders = {
        tuple(b.facts["uid"][0].as_py() for b in pool.batches(1, seed=s, together=None)) for s in range(5)
    }
    assert len(orders) > 1 or len(known) < 3
