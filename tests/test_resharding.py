"""What some ranks recorded, replayed by another number: by samples, bit for bit, or refused by name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rolltape
from tests.exact import assert_same
from tests.taping import files

WORLDS = [(4, 2), (2, 4), (8, 1), (1, 8), (3, 2), (2, 3), (1, 2), (6, 4)]


@dataclass
class Sample:
    """One of a list of samples."""

    uid: str
    tokens: list[int]
    score: float


@dataclass
class Rollouts:
    """A batch with a field for each column."""

    uid: list[str]
    tokens: np.ndarray
    meta: dict[str, Any]


def rows(n: int) -> dict[str, Any]:
    random = np.random.default_rng(n)
    return {
        "uid": [f"u{row // 2}" for row in range(n)],
        "tokens": random.integers(0, 9, (n, 5)),
        "half": random.normal(size=(n, 2, 3)).astype(np.float16),
        "flag": np.arange(n) % 3 == 0,
        "score": [float("nan") if row == 1 else row / 7 for row in range(n)],
        "text": [f"text {row} é" for row in range(n)],
        "ids": [list(range(row % 4)) for row in range(n)],
        "arrays": [np.arange(row % 3 + 1, dtype=np.int16) for row in range(n)],
        "objects": np.array([{"a": row} if row % 2 else None for row in range(n)], dtype=object),
        "nested": {"deep": random.normal(size=(n, 3))},
    }


def sliced(batch: dict[str, Any], part: slice) -> dict[str, Any]:
    return {k: sliced(v, part) if isinstance(v, dict) else v[part] for k, v in batch.items()}


def as_dict(batch: dict[str, Any]) -> Any:
    return {
        **batch,
        "meta": {"temperature": 0.7, "stop": ["a", "b"], "empty": None},
        "table": np.eye(7)[:, :2],
    }


def as_dataclass(batch: dict[str, Any]) -> Any:
    return Rollouts(batch["uid"], batch["tokens"], {"greedy": False})


def as_records(batch: dict[str, Any]) -> Any:
    return [Sample(*one) for one in zip(batch["uid"], batch["ids"], batch["score"], strict=True)]


def as_batch(batch: dict[str, Any]) -> Any:
    return rolltape.Batch({"uid": batch["uid"], "tokens": batch["tokens"]}, meta={"step": 1})


def as_tuple(batch: dict[str, Any]) -> Any:
    return batch["tokens"], batch["text"], 0.5


def record(directory: Path | str, values: list[Any], *arguments: Any, **options: Any) -> None:
    """A shard for each value, each rank giving its stage its own argument."""
    for rank in range(len(values)):
        where = {"rank": rank, "world_size": len(values)}
        options = {"random_state": False, **options}
        with rolltape.Tape(directory, mode="record", **where, **options) as tape:

            def generate(given: Any = None, rank: int = rank) -> Any:
                return values[rank]

            stage = tape.stage("rollout", inputs=["given"] if arguments else None)(generate)
            with tape.step(3):
                stage(*(arguments[rank : rank + 1]))


def replay(directory: Path | str, rank: int, world: int, *arguments: Any, **options: Any) -> Any:
    options = {"mode": "replay", "reshard": True, "random_state": False, **options}
    with rolltape.Tape(directory, rank=rank, world_size=world, **options) as tape:

        def generate(given: Any = None, rank: int = rank) -> Any:
            pytest.fail("it ran live")

        stage = tape.stage("rollout", inputs=["given"] if arguments else None)(generate)
        with tape.step(3):
            return stage(*arguments)


def parts(n: int, world: int) -> list[slice]:
    return [slice(n * rank // world, n * (rank + 1) // world) for rank in range(world)]


@pytest.mark.parametrize("build", [as_dict, as_dataclass, as_records, as_batch, as_tuple])
@pytest.mark.parametrize(("recorded", "replayed"), WORLDS)
def test_each_rank_gets_its_part(
    build: Callable[..., Any], recorded: int, replayed: int, tmp_path: Path
) -> None:
    whole = rows(24)
    record(tmp_path / "t", [build(sliced(whole, part)) for part in parts(24, recorded)])
    for rank, part in enumerate(parts(24, replayed)):
        assert_same(replay(tmp_path / "t", rank, replayed), build(sliced(whole, part)))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_shards_of_any_sizes(data: st.DataObject) -> None:
    """Ranks need not have recorded equal parts; those of the replay are equal, or it is refused."""
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    world = data.draw(st.integers(1, 6).filter(lambda world: world != len(sizes)))
    whole, ends = rows(sum(sizes)), [0, *np.cumsum(sizes).tolist()]
    with TemporaryDirectory() as folder:
        record(folder + "/t", [as_dict(sliced(whole, slice(*ends))) for ends in pairwise(ends)])
        for rank, part in enumerate(parts(sum(sizes), world)):
            if sum(sizes) % world:
                with pytest.raises(rolltape.MismatchError, match="cannot be divided equally"):
                    replay(folder + "/t", rank, world)
            else:
                assert_same(replay(folder + "/t", rank, world), as_dict(sliced(whole, part)))


def test_it_has_to_be_declared(tmp_path: Path) -> None:
    record(tmp_path / "t", [rows(2), rows(2)])
    with pytest.raises(rolltape.StepMissingError) as caught:
        replay(tmp_path / "t", 0, 1, reshard=False)
    assert "it was recorded with world_size 2, and this run has 1" in str(caught.value)
    assert "set reshard=True" in str(caught.value.hint)


def test_only_a_replay_can(tmp_path: Path) -> None:
    for mode in ("record", "rewrite", "auto"):
        with pytest.raises(rolltape.ConfigError, match="only mode replay"):
            rolltape.Tape(tmp_path / "t", mode=mode, reshard=True)


def test_one_can_say_so_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "t", [{"x": [1, 2]}, {"x": [3, 4]}])
    monkeypatch.setenv("ROLLTAPE_RESHARD", "1")
    assert replay(tmp_path / "t", 0, 1, reshard=None) == {"x": [1, 2, 3, 4]}


def test_its_own_shards_are_played_as_they_are(tmp_path: Path) -> None:
    record(tmp_path / "t", [{"x": [1, 2], "rank": rank} for rank in (0, 1)])
    assert replay(tmp_path / "t", 1, 2) == {"x": [1, 2], "rank": 1}


REFUSED = {
    "a number of its own": ([{"x": [1], "loss": 0.5}, {"x": [2], "loss": 0.25}], "'loss' belongs to no"),
    "a text of its own": ([{"x": [1], "meta": {"at": "a"}}, {"x": [2], "meta": {"at": "b"}}], "'meta/at'"),
    "a sign of zero": ([{"uid": ["a"], "z": np.zeros(3)}, {"uid": ["b"], "z": -np.zeros(3)}], "'z'"),
    "another dtype": (
        [{"x": np.zeros((2, 3), np.float32)}, {"x": np.zeros((2, 3), np.float64)}], "'x' is float32 in one"
    ),
    "another shape": ([{"x": np.zeros((2, 3, 2))}, {"x": np.zeros((2, 4, 2))}], "rows of the shape [3, 2]"),
    "as many values of its own as samples": (
        [{"uid": ["a", "b"], "meta": {"eos": [1, at]}} for at in (2, 3)], "'meta' belongs to no sample"
    ),
    "another column": ([{"x": [1], "y": [2]}, {"x": [1]}], "put together in different ways"),
    "a list of its own": ([{"uid": ["a"], "s": [1, 2, 3]}, {"uid": ["b"], "s": [1, 2]}], "'s' belongs"),
    "another kind": ([{"x": np.arange(2)}, {"x": [1, 2]}], "'x' is a numpy in one shard, and a list"),
    "no samples": ([{"x": [1, 2]}, {"x": []}], "rank 1 recorded no samples"),
    "an odd number": ([{"x": [1, 2]}, {"x": [1, 2, 3]}], "5 samples cannot be divided equally among 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exact_is_refused_by_name(name: str, tmp_path: Path) -> None:
    values, message = REFUSED[name]
    record(tmp_path / "t", values)
    world = 3 if "odd" in name else 1
    for rank in range(world):
        with pytest.raises(rolltape.MismatchError) as caught:
            replay(tmp_path / "t", rank, world)
        assert message in str(caught.value)
        assert f"step 3 of train/rollout cannot be re-sharded from 2 to {world} ranks" in str(caught.value)


def test_a_rank_that_has_no_part_in_a_shard_is_refused_with_the_others(tmp_path: Path) -> None:
    """Every rank comes to the same answer: else some would go on and wait for the others."""
    record(tmp_path / "t", [{"x": [1, 2], "at": rank == 3} for rank in range(4)])
    for rank in (0, 1):
        with pytest.raises(rolltape.MismatchError, match="'at' belongs to no sample"):
            replay(tmp_path / "t", rank, 2)


def test_a_rank_whose_own_part_would_be_exact_is_refused_with_the_others(tmp_path: Path) -> None:
    record(tmp_path / "t", [{"x": np.zeros((3, width))} for width in (4, 5)])
    for rank in range(3):
        with pytest.raises(rolltape.MismatchError, match=r"column 'x' is rows of the shape \[4\]"):
            replay(tmp_path / "t", rank, 3)
    assert_same(replay(tmp_path / "t", 5, 6), {"x": np.zeros((1, 5))})


def test_random_states_are_each_ranks_own(tmp_path: Path) -> None:
    for rank in (0, 1):
        np.random.seed(rank)
        where = {"rank": rank, "world_size": 2}
        with rolltape.Tape(tmp_path / "t", mode="record", **where) as tape, tape.step(3):
            tape.stage("rollout")(lambda: {"x": np.random.rand(2)})()
    with pytest.raises(rolltape.MismatchError, match="random state of its own") as caught:
        replay(tmp_path / "t", 0, 1, random_state=True)
    assert "random_state=False" in str(caught.value.hint)
    assert len(replay(tmp_path / "t", 0, 1)["x"]) == 4


def test_one_sample_and_named_calls_are_refused(tmp_path: Path) -> None:
    for rank in (0, 1):
        with rolltape.Tape(tmp_path / "t", mode="record", rank=rank, world_size=2) as tape:
            with tape.step(3):
                tape.stage("rollout", samples="one")(lambda: {"text": "a"})()
            with tape.step(4, key="a"):
                tape.stage("named")(lambda: {"text": "a"})()
    with pytest.raises(rolltape.MismatchError, match="one sample, and not a batch"):
        replay(tmp_path / "t", 0, 1)
    options = {"mode": "replay", "reshard": True}
    with rolltape.Tape(tmp_path / "t", **options) as tape, tape.step(4, key="a"):  # noqa: SIM117
        with pytest.raises(rolltape.StepMissingError):
            tape.stage("named")(lambda: None)()


def test_groups_in_lists_are_not_taken_apart(tmp_path: Path) -> None:
    groups = [[Sample(f"u{group}", [1], 0.5) for _ in range(2)] for group in range(4)]
    record(tmp_path / "t", [groups[:2], groups[2:]])
    assert_same(replay(tmp_path / "t", 2, 4), groups[2:3])
    assert_same(replay(tmp_path / "t", 0, 1), groups)
    with pytest.raises(rolltape.MismatchError, match="groups of uid, tokens, score would be taken apart"):
        replay(tmp_path / "t", 0, 8)


def test_a_prompt_that_is_divided_between_ranks_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(tmp_path / "t", [{"uid": ["a"] * 4}, {"uid": ["b"] * 4}])
    with caplog.at_level(logging.WARNING):
        replay(tmp_path / "t", 0, 1)
        assert "divided" not in caplog.text
        replay(tmp_path / "t", 1, 4)
    assert "the group 'a' is divided between two ranks" in caplog.text


def test_a_number_that_may_count_samples_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record(tmp_path / "t", [{"x": [1, 2], "n": 2, "m": 3}, {"x": [1, 2], "n": 2, "m": 3}])
    with caplog.at_level(logging.WARNING):
        assert replay(tmp_path / "t", 0, 1)["n"] == 2
    assert "n may count samples" in caplog.text


def test_recorded_inputs_are_compared_part_by_part(tmp_path: Path) -> None:
    record(tmp_path / "t", [{"x": [1, 2]}, {"x": [3, 4]}], ["a", "b"], ["c", "d"])
    assert replay(tmp_path / "t", 0, 1, ["a", "b", "c", "d"]) == {"x": [1, 2, 3, 4]}
    assert replay(tmp_path / "t", 3, 4, ["d"]) == {"x": [4]}
    with pytest.raises(rolltape.MismatchError) as caught:
        replay(tmp_path / "t", 0, 1, ["a", "b", "d", "c"])
    assert "given[2] = 'c'" in str(caught.value)


def test_arguments_that_are_only_digests_are_said_not_to_be_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for rank in (0, 1):
        where = {"rank": rank, "world_size": 2, "random_state": False}
        with rolltape.Tape(tmp_path / "t", mode="record", **where) as tape, tape.step(3):
            tape.stage("rollout")(lambda given: {"x": given})([rank])
    with (
        caplog.at_level(logging.WARNING),
        rolltape.Tape(tmp_path / "t", mode="replay", reshard=True, random_state=False) as tape,
        tape.step(3),
    ):
        assert tape.stage("rollout")(lambda given: given)(["another"]) == {"x": [0, 1]}
    assert "the arguments of stage 'rollout' are not compared: only digests" in caplog.text


def test_an_incomplete_step_is_not_divided(tmp_path: Path) -> None:
    for rank in (0, 2):
        with rolltape.Tape(tmp_path / "t", mode="record", rank=rank, world_size=3) as tape, tape.step(3):
            tape.stage("rollout")(lambda: {"x": [1]})()
    with pytest.raises(rolltape.StepMissingError):
        replay(tmp_path / "t", 0, 1)


def test_two_recordings_of_a_step_are_ambiguous(tmp_path: Path) -> None:
    record(tmp_path / "t", [{"x": [1]}, {"x": [2]}])
    record(tmp_path / "t", [{"x": [1]}])
    with pytest.raises(rolltape.MismatchError, match="by 1 ranks, and by 2 ranks again"):
        replay(tmp_path / "t", 0, 4)


def test_substitutes_are_divided_too_and_a_second_tape_knows_what_was_replayed(tmp_path: Path) -> None:
    record(tmp_path / "t", [{"x": [1, 2]}, {"x": [3, 4]}])
    options = {"mode": "replay", "reshard": True, "random_state": False}
    with rolltape.Tape(tmp_path / "t", on_miss="last", **options) as tape, tape.step(9):
        assert tape.stage("rollout")(lambda: None)() == {"x": [1, 2, 3, 4]}
    replay(tmp_path / "t", 0, 1, out=tmp_path / "out")
    noted = (tmp_path / "out" / "replayed.jsonl").read_text()
    assert [f"r{rank}of2" in noted for rank in (0, 1)] == [True, True]
    assert not [name for name in files(tmp_path / "t") if "step_000009" in name]
