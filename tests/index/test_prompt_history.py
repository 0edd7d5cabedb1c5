"""One prompt through training, and all samples as a table: with an index, without one, with half of one."""

import json

import numpy as np
import pytest

import rolltape
from rolltape.index.index_building import build_index
from rolltape.index.prompt_history import prompt_records, prompt_visits
from rolltape.index.prompt_key import canonical, prompt_digest
from rolltape.index.sample_table import TABLE_SCHEMA, SampleTable, _in_place, reward_stage
from tests.cli_tapes import run as cli

STEPS = {
    "falls": [[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]],
    "rises": [[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]],
    "never": [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]],
}


def record(path, *, apart=False, calls=1, uids=True, until=3):
    """Three prompts at three steps, two samples each; rewards in a stage of their own where ``apart``."""
    with rolltape.Tape(path, mode="record") as tape:
        rollout, reward = (tape.stage(name)(lambda value: value) for name in ("rollout", "reward"))
        for step in range(until):
            with tape.step(step):
                for call in range(calls):
                    names = list(STEPS)[call::calls]
                    names = names[::-1] if step == 1 else names
                    prompts = [name for name in names for _ in range(2)]
                    values = np.array([v for name in names for v in STEPS[name][step]], np.float32)
                    who = {"uid": [f"{step}-{p}" for p in prompts]} if uids else {}
                    said = [f"{p} {v}" for p, v in zip(prompts, values, strict=True)]
                    row = who | {
                        "prompt": prompts,
                        "response": said,
                        "finish_reason": ["stop", "length"] * len(names),
                    }
                    rollout(row if apart else row | {"reward": values})
                    if apart:
                        reward(who | {"reward": values})
    return path


def whole(run):
    scored = reward_stage(run, "rollout")
    other = SampleTable(run, scored) if scored not in (None, "rollout") else None
    table = SampleTable(run, "rollout", rewards=other)
    assert table.advance().complete
    return table.table()


@pytest.mark.parametrize("indexed", ["nothing", "half", "all"])
@pytest.mark.parametrize(
    "shape", [{}, {"apart": True}, {"apart": True, "uids": False}, {"apart": True, "calls": 3}, {"calls": 3}]
)
def test_the_table_says_what_the_recordings_say(tmp_path, shape, indexed):
    record(tmp_path / "t", **shape)
    run = rolltape.open(tmp_path / "t")
    if indexed != "nothing":
        build_index(run, "rollout", "train")
    if indexed == "half":
        (tmp_path / "t/train/rollout/step_000002.parquet").touch()
        for path in sorted((tmp_path / "t/train/rollout").glob("step_000001*"))[:1]:
            path.write_bytes(path.read_bytes())  # another file of the same content
    table = whole(run)
    assert len(table) == 18
    for row in table.to_pylist():
        sample = run.samples(row["step"])[row["sample"]]
        assert sample["response"].endswith(f" {row['reward']}")
        assert row["prompt"] == prompt_digest(canonical(sample["prompt"]))
        assert row["finish"] == sample["finish_reason"]
        assert row["truncated"] == (row["finish"] == "length")
        if shape.get("uids", True):
            assert (row["uid"], row["index"]) == (sample.uid, sample.index)


def test_it_is_read_little_by_little_and_follows_what_lands(tmp_path):
    record(tmp_path / "t", until=2)
    table = SampleTable(rolltape.open(tmp_path / "t"))
    assert table.advance(0.0).done == 0
    assert len(table.table()) == 0
    assert table.advance().complete
    assert len(table.table()) == 12
    with rolltape.Tape(tmp_path / "t", mode="auto") as tape, tape.step(2):
        tape.stage("rollout")(lambda: {"prompt": ["new"], "reward": [0.25]})()
    assert table.advance().complete
    assert table.table()["reward"].to_pylist()[-1] == 0.25


def test_a_damaged_recording_is_named_and_the_rest_is_there(tmp_path):
    record(tmp_path / "t")
    path = tmp_path / "t/train/rollout/step_000001.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    table = SampleTable(rolltape.open(tmp_path / "t"))
    table.advance()
    assert list(table.unreadable) == ["train/rollout/step_000001.parquet"]
    assert sorted(set(table.table()["step"].to_pylist())) == [0, 2]


def test_how_prompts_fared(tmp_path):
    table = whole(rolltape.open(record(tmp_path / "t", apart=True)))
    found = {one.digest: one for one in prompt_records(table, 0.5)}
    falls, rises, never = (found[prompt_digest(canonical(name)).hex()] for name in STEPS)
    assert (falls.pass_rate, falls.first, falls.last, falls.change) == (0.5, 1.0, 0.0, -1.0)
    assert [falls.is_of(t) for t in ("got worse", "got better", "never improves")] == [True, False, True]
    assert [rises.is_of(t) for t in ("got worse", "got better", "never improves")] == [False, True, False]
    assert [never.is_of(t) for t in ("never passed", "never improves", "got worse")] == [True, True, False]
    assert [(one.samples, one.steps) for one in (falls, rises, never)] == [(6, 3)] * 3
    visits = prompt_visits(table, prompt_digest(canonical("falls")), 0.5)
    assert [(one.step, one.mean, one.pass_rate) for one in visits] == [
        (0, 1.0, 1.0),
        (1, 0.5, 0.5),
        (2, 0.0, 0.0),
    ]
    assert (visits[1].rewards, visits[1].best < visits[1].worst) == ((1.0, 0.0), True)
    assert prompt_visits(table, bytes(16), 0.5) == []


def test_show_prints_one_prompt_through_training(tmp_path):
    tape = record(tmp_path / "t", apart=True)
    for asked in ("falls", "0/0", prompt_digest(canonical("falls")).hex()[:12], "alls"):
        told = json.loads(cli("show", tape, "--prompt", asked, "--json").stdout)
        assert told["prompt"] == "falls"
        assert [step["mean"] for step in told["steps"]] == [1.0, 0.5, 0.0]
        assert [step["best"]["response"] for step in told["steps"]] == ["falls 1.0", "falls 1.0", "falls 0.0"]
    shown = cli("show", tape, "--prompt", "rises").stdout
    assert "rises 1.0" in shown
    assert "asked at 3 steps" in shown
    for bad, why in (
        ("e", "Name one by its digest"),
        ("nowhere", "no prompt of train/rollout"),
        ("0/99", "no sample 99"),
    ):
        failed = cli("show", tape, "--prompt", bad)
        assert failed.exit_code == 2
        assert why in failed.stderr.replace("\n", " ")
    assert cli("show", tape).exit_code == 2
    assert cli("show", tape, "0", "--prompt", "falls").exit_code == 2


@pytest.mark.parametrize("indexed", ["nothing", "half", "all"])
@pytest.mark.parametrize("seed", range(6))
def test_columns_and_rows_are_read_as_they_are_asked_for(tmp_path, seed, indexed):
    """Calls of any size, rewards of another stage in another order and some missing, steps that go up in
    leaps: what is asked for by column, by row, or all at once, is what the recordings say."""
    rng = np.random.default_rng(seed)
    known, scores, at = [], {}, 0
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout, reward = (tape.stage(name)(lambda value: value) for name in ("rollout", "reward"))
        for step in np.sort(rng.choice(40, 7, replace=False)).tolist():
            sample = 0
            with tape.step(step):
                for _ in range(rng.integers(1, 4)):
                    lengths = rng.integers(1, 9, rng.integers(1, 12))
                    names = [f"u{at + one}" for one in range(len(lengths))]
                    at += len(lengths)
                    finish = rng.choice(["stop", "LENGTH", "abort"], len(lengths)).tolist()
                    rollout({
                        "uid": names, "prompt": rng.choice(["a", "b", "c"], len(lengths)).tolist(),
                        "response_ids": [np.arange(n) for n in lengths], "finish_reason": finish,
                    })  # fmt: skip
                    for row in zip(names, lengths.tolist(), finish, strict=True):
                        known.append((step, sample, *row))
                        sample += 1
                    order = rng.permutation(len(names))[: len(names) - (seed % 2)]
                    values = rng.random(len(order)).astype(np.float32)
                    scores |= {names[one]: float(v) for one, v in zip(order, values, strict=True)}
                    if len(order):
                        reward({"uid": [names[one] for one in order], "reward": values})
            if indexed == "half" and step > 20:
                indexed = "then nothing"
                tape.flush()
                for name in ("rollout", "reward"):
                    build_index(rolltape.open(tmp_path / "t"), name)
    run = rolltape.open(tmp_path / "t")
    if indexed == "all":
        for name in ("rollout", "reward"):
            build_index(run, name)
    table = SampleTable(run, rewards=SampleTable(run, "reward"))
    assert table.advance().complete
    expected = [
        (step, sample, uid, length, finish, finish == "LENGTH", scores.get(uid))
        for step, sample, uid, length, finish in known
    ]
    names = ("step", "sample", "uid", "response_tokens", "finish", "truncated", "reward")
    some = rng.integers(0, len(expected), 9)
    assert len(table) == len(expected)
    assert table.table({"reward"})["reward"].to_pylist() == [row[-1] for row in expected]
    picked = table.rows(some)
    assert list(zip(*(picked[name].to_pylist() for name in names), strict=True)) == [
        expected[one] for one in some
    ]
    whole = table.table()
    assert list(zip(*(whole[name].to_pylist() for name in names), strict=True)) == expected
    assert whole.schema.equals(TABLE_SCHEMA)
    assert set(whole["prompt"].to_pylist()) <= {prompt_digest(canonical(one)) for one in "abc"}


@pytest.mark.parametrize("indexed", [False, True])
def test_rewards_that_land_or_are_read_later_are_put_beside_what_is_there(tmp_path, indexed):
    """A table that is complete stays so while the stage of the rewards is read, and goes on."""
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout, reward = (tape.stage(name)(lambda value: value) for name in ("rollout", "reward"))
        for step in range(4):
            with tape.step(step):
                rollout({"uid": ["a", "b"], "prompt": ["x", "y"]})
                if step < 2:
                    reward({"uid": ["b", "a"], "reward": [1.0 + step, 0.5]})
    run = rolltape.open(tmp_path / "t")
    if indexed:
        build_index(run, "rollout")
    rewards = SampleTable(run, "reward")
    table = SampleTable(run, rewards=rewards)
    seen = []
    while not table.advance(0.0).complete:
        seen.append((len(table), table.table()["reward"].to_pylist()))
        for one in (table, rewards):
            if one._todo:
                one._take(one._todo.pop())
                break
    expected = [0.5, 1.0, 0.5, 2.0, None, None, None, None]
    assert table.table()["reward"].to_pylist() == expected
    assert [count for count, _ in seen] == sorted(count for count, _ in seen)
    assert seen[-1][0] == 8
    assert {None, 0.5, 1.0} <= set(seen[-1][1])
    with rolltape.Tape(tmp_path / "t", mode="auto") as tape, tape.step(2):
        tape.stage("reward")(lambda: {"uid": ["a", "b"], "reward": [7.0, 8.0]})()
    assert table.advance().complete
    assert table.table()["reward"].to_pylist() == [*expected[:4], 7.0, 8.0, None, None]
    assert table.table()["prompt"].null_count == 0


def test_rows_that_an_index_tells_wrongly_still_have_an_order():
    """Numbers of rows that are there twice, or of no step that its recording has."""
    files, rows = np.array([0, 1, 0, 1], np.int32), np.array([1, 0, 1, 1], np.int32)
    steps, first, counts = np.array([3, 2, 3, 2]), np.array([0, 0]), np.array([2, 2])
    assert _in_place(files, rows, steps, first, counts).tolist() == [1, 3, 0, 2]
    steps = np.array([3, 2, 1, 2])
    assert _in_place(files, np.array([1, 0, 0, 1]), steps, first, counts).tolist() == [2, 1, 3, 0]
    rows, steps = np.array([1, 0, 0, 1]), np.array([3, 2, 3, 2])
    assert _in_place(files, rows, steps, np.array([0, -9]), counts).tolist() == [2, 0]
