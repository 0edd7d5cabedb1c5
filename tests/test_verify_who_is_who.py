"""Samples are matched by who they are, over calls and shards; by what they hold where uids do not tell."""

from __future__ import annotations

import uuid

import numpy as np
import pytest

import rolltape
from rolltape.verify import Verdict
from tests.comparing import compared

GROUPS, SIZE = 3, 4


def batch(seed=0, uid="given", index="index"):
    """Three prompts of four samples each."""
    random = np.random.default_rng(seed)
    names = {
        "given": [f"p{at}" for at in range(GROUPS)],
        "whole": list(range(GROUPS)),
        "random": [str(uuid.uuid4()) for _ in range(GROUPS)],
        "none": [],
    }[uid]
    found = {
        "prompts": np.repeat(np.arange(GROUPS * 5).reshape(GROUPS, 5) + 10, SIZE, axis=0),
        "responses": random.integers(100, 999, (GROUPS * SIZE, 6)),
        "reward": random.normal(size=GROUPS * SIZE).astype(np.float32),
    }
    if names:
        found["uid"] = [name for name in names for _ in range(SIZE)]
    if index:
        found[index] = np.tile(np.arange(SIZE), GROUPS)
    return found


def pick(batch, rows):
    return {k: [v[at] for at in rows] if isinstance(v, list) else v[list(rows)] for k, v in batch.items()}


def record(path, calls, loss=None, ranks=()):
    for rank in ranks or [None]:
        options = {} if rank is None else {"rank": rank, "world_size": len(ranks)}
        with rolltape.Tape(path, mode="record", background=False, **options) as tape, tape.step(0):
            make = tape.stage("rollout")(lambda call: call)
            for call in calls if rank is None else [calls[rank]]:
                make(call)
            if loss is not None:
                tape.stage("loss")(lambda: loss)()
    return path


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("uid", ["given", "whole", "none"])
@pytest.mark.parametrize("index", ["index", "index_in_group", None])
def test_micro_batches_that_part_a_group_are_put_together_first(tmp_path, size, uid, index):
    whole = batch(uid=uid, index=index)
    parts = [pick(whole, range(at, min(at + size, 12))) for at in range(0, 12, size)]
    found = compared(record(tmp_path / "a", [whole]), record(tmp_path / "b", parts))
    assert found.verdict is Verdict.BITWISE
    parts[-1]["reward"][-1] += 1
    first = compared(tmp_path / "a", record(tmp_path / "c", parts)).first
    assert (first.name, first.first.row, first.samples) == ("reward", 11, 1)


@pytest.mark.parametrize("index", ["index", "sample_index", None])
@pytest.mark.parametrize("deal", ["halves", "in turn"])
def test_shards_of_two_ranks_are_put_together_first(tmp_path, index, deal):
    whole = batch(index=index)
    rows = ([*range(6)], [*range(6, 12)]) if deal == "halves" else ([*range(0, 12, 2)], [*range(1, 12, 2)])
    shards = [pick(whole, rows[0]), pick(whole, rows[1])]
    found = compared(record(tmp_path / "a", [whole]), record(tmp_path / "b", shards, ranks=(0, 1)))
    assert found.verdict is Verdict.BITWISE


@pytest.mark.parametrize("order", ["same", "groups", "all"])
def test_uids_that_are_random_are_matched_by_prompt_and_response(tmp_path, order):
    ours, theirs = batch(uid="random", index=None), batch(uid="random", index=None)
    random = np.random.default_rng(3)
    rows = {
        "same": np.arange(12),
        "groups": np.concatenate([np.arange(4) + 4 * at for at in (2, 0, 1)]),
        "all": random.permutation(12),
    }[order]
    losses = random.normal(size=(12, 6)).astype(np.float32)
    theirs = pick(theirs, rows)
    ours_path = record(tmp_path / "a", [ours], {"uid": ours["uid"], "log_probs": losses})
    found = compared(
        ours_path, record(tmp_path / "b", [theirs], {"uid": theirs["uid"], "log_probs": losses[rows]})
    )
    assert found.verdict is Verdict.BITWISE
    assert found.matched == "prompt and response"
    wrong = losses[rows].copy()
    wrong[rows.tolist().index(7), 3] += 0.25
    first = compared(
        ours_path, record(tmp_path / "c", [theirs], {"uid": theirs["uid"], "log_probs": wrong})
    ).first
    assert (first.stage, first.first.row, first.first.token) == ("loss", 7, (3,))


def test_a_response_that_differs_is_found_under_random_uids(tmp_path):
    ours, theirs = batch(uid="random", index=None), batch(uid="random", index=None)
    theirs["responses"][6, 2] = 7
    first = compared(record(tmp_path / "a", [ours]), record(tmp_path / "b", [theirs])).first
    assert (first.name, first.first.row, first.first.token) == ("responses", 6, (2,))


def test_other_prompts_under_random_uids_are_other_samples(tmp_path):
    ours, theirs = batch(uid="random"), batch(uid="random")
    theirs["prompts"] += 1000
    theirs["responses"] += 1000
    found = compared(record(tmp_path / "a", [ours]), record(tmp_path / "b", [theirs]))
    assert "12 samples are not on the candidate's side" in found.first.note


@pytest.mark.parametrize("uid", ["none", "random"])
@pytest.mark.parametrize("rows", [[5], range(4, 8), range(12)], ids=["a sample", "a group", "all"])
def test_other_prompts_of_the_same_responses_are_other_prompts_and_no_other_samples(tmp_path, uid, rows):
    ours, theirs = batch(uid=uid, index=None), batch(uid=uid, index=None)
    theirs["prompts"][list(rows), 2] += 500
    found = compared(record(tmp_path / "a", [ours]), record(tmp_path / "b", [theirs]))
    assert (found.first.name, found.first.first.row, found.first.first.token) == ("prompts", rows[0], (2,))
    assert found.first.samples == len(rows)
    assert [entry.name for entry in found.entries if not entry.verdict.clean] == ["prompts"]


@pytest.mark.parametrize("uid", ["given", "none", "random"])
def test_the_sample_that_is_lost_is_named_where_order_alone_tells_those_of_a_uid_apart(tmp_path, uid):
    ours, theirs = batch(uid=uid, index=None), batch(uid=uid, index=None)
    theirs = pick(theirs, [at for at in range(12) if at != 5])
    found = compared(record(tmp_path / "a", [ours]), record(tmp_path / "b", [theirs]))
    assert found.first.note.startswith("1 samples are not on the candidate's side")
    assert found.first.first.row == 5
    assert [entry.name for entry in found.entries if not entry.verdict.clean] == [""]


@pytest.mark.parametrize("uid", ["given", "none", "random"])
def test_a_sample_more_in_the_midst_of_a_group_moves_no_other(tmp_path, uid):
    ours, theirs = batch(uid=uid, index=None), batch(uid=uid, index=None)
    ours = pick(ours, [at for at in range(12) if at != 5])
    found = compared(record(tmp_path / "a", [ours]), record(tmp_path / "b", [theirs]))
    assert found.first.note.startswith("1 samples are not on the baseline's side")
    assert [entry.name for entry in found.entries if not entry.verdict.clean] == [""]


@pytest.mark.parametrize("uid", ["given", "random"])
def test_a_stage_with_an_index_of_its_own_goes_by_that_where_the_rollout_has_none(tmp_path, uid):
    losses = np.random.default_rng(3).normal(size=12).astype(np.float32)

    def run(path, rows, wrong=None):
        made = batch(uid=uid, index=None)
        stage = {"uid": made["uid"], "sample_index": np.arange(12), "loss": losses.copy()}
        if wrong is not None:
            stage["loss"][wrong] += 1
        return record(tmp_path / path, [pick(made, rows)], pick(stage, rows))

    base = run("a", range(12))
    other = np.random.default_rng(6).permutation(12)
    assert compared(base, run("b", other)).verdict is Verdict.BITWISE
    first = compared(base, run("c", other, wrong=2)).first
    assert (first.path, first.first.row) == ("loss/loss", 2)


@pytest.mark.parametrize("uid", ["given", "none"])
def test_samples_of_a_prompt_in_another_order_are_the_same_samples(tmp_path, uid):
    ours = batch(uid=uid, index=None)
    rows = np.random.default_rng(5).permutation(12)
    found = compared(record(tmp_path / "a", [ours]), record(tmp_path / "b", [pick(ours, rows)]))
    assert found.verdict is Verdict.BITWISE
    wrong = pick(ours, rows)
    wrong["reward"][3] += 1
    first = compared(tmp_path / "a", record(tmp_path / "c", [wrong])).first
    assert (first.name, first.first.row) == ("reward", int(rows[3]))
