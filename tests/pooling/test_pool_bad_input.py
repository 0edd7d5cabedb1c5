"""What goes wrong with pools is said; what is unknown is not 0, and nothing is mixed up or lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

import rolltape
from rolltape.index import sample_index
from rolltape.index.index_building import build_index


def record(place: Path, steps: dict[int, dict[str, Any]], stage: str = "rollout", **options: Any) -> Path:
    """A tape with what a stage returned at each step."""
    with rolltape.Tape(place, mode="auto", **options) as tape:
        call = tape.stage(stage)(lambda step: steps[step])
        for step in steps:
            with tape.step(step):
                call(step)
    return place


def rows(uid: str = "u", reward: Any = (0.0, 1.0), **more: Any) -> dict[str, Any]:
    return {
        "uid": [uid] * 2, "prompt": ["a", "a"], "response_ids": [np.array([5, 6]), np.array([7])],
        "prompt_ids": [np.array([1]), np.array([1])], "reward": list(reward),
    } | more  # fmt: skip


def test_an_unknown_column_names_the_nearest(tmp_path: Path) -> None:
    tape = record(tmp_path / "tape", {0: rows(difficulty=[1, 2])})
    for text, meant in (
        ("rewrd > 1", "reward"),
        ("pass_rat > 1", "pass_rate"),
        ("dificulty > 1", "difficulty"),
    ):
        with pytest.raises(rolltape.ConfigError, match=f"did you mean {meant}"):
            rolltape.pool(tape, where=text)
    with pytest.raises(rolltape.ConfigError, match="did you mean difficulty"):
        rolltape.pool(tape, where="reward > 7 and dificulty > 1")  # also where nothing is left to look at
    with pytest.raises(rolltape.ConfigError, match="did you mean difficulty"):
        rolltape.pool(tape).arrow(["dificulty"])
    with pytest.raises(rolltape.ConfigError, match="cannot be compared"):
        rolltape.pool(tape, where="response_ids > 1")
    assert len(rolltape.pool(tape, where="difficulty > 1")) == 1
    assert len(rolltape.pool(tape, where=pc.field("difficulty") > 1)) == 1
    assert len(rolltape.pool(tape, where=pc.field("reward") > 0.5)) == 1


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('x')", "reward > (lambda: 1)()", "reward.__class__ == 1", "[r for r in reward]",
     "reward if 1 else 2", "reward := 1", "f'{reward}' == 'a'", "reward ** 2 > 1", "reward and True", "",
     "  ", "reward >", "reward is True", "step in steps", "split > 1", "1 == 1", "(" * 300 + "1" + ")" * 300],
)  # fmt: skip
def test_nothing_but_comparisons_is_read(tmp_path: Path, text: str) -> None:
    tape = record(tmp_path / "tape", {0: rows()})
    with pytest.raises(rolltape.ConfigError, match="where"):
        rolltape.pool(tape, where=text)


def test_a_missing_reward_is_not_zero_and_matches_nothing(tmp_path: Path) -> None:
    nan = float("nan")
    tape = record(tmp_path / "tape", {0: rows(reward=[nan, 1.0]), 1: rows(reward=[nan, nan])})
    other = record(tmp_path / "other", {0: {k: v for k, v in rows().items() if k != "reward"}})
    pool = rolltape.pool([tape, other])
    assert pool.facts["reward"].to_pylist() == [None, 1.0, None, None, None, None]
    assert pool.facts["pass_rate"].to_pylist() == [1.0] * 6, "only those with a reward count"
    for text in ("reward < 1", "not reward >= 1", "reward != 1", "reward not in (1,)", "reward == reward"):
        assert len(pool.where(text)) == (text == "reward == reward"), text
    assert len(pool.where("reward is None")) == 5
    assert np.isnan(pool.training().reward).sum() == 5
    with pytest.raises(rolltape.BatchError, match="5 of 6 samples have no reward, and none is not 0"):
        pool.training().with_rewards()
    alone = rolltape.pool(other)
    assert alone.facts["pass_rate"].to_pylist() == [None, None]
    assert len(alone.where("pass_rate >= 0 or pass_rate < 0")) == 0


def test_an_empty_pool_is_one_and_makes_no_batch(tmp_path: Path) -> None:
    tape = record(tmp_path / "tape", {0: rows(score_of_mine=[1, 2])})
    pool = rolltape.pool(tape, where="reward > 5")
    assert (len(pool), list(pool.batches(4)), pool.facts.num_rows, pool.arrow().num_rows) == (0, [], 0, 0)
    assert len(pool.unique("response")) == len(pool.where("score_of_mine > 0")) == 0
    for make in (pool.training, pool.recorded):
        with pytest.raises(rolltape.BatchError, match="the pool is empty"):
            make()
    with pytest.raises(rolltape.StepMissingError, match="no readable recording"):
        rolltape.pool(tape, steps="5-9")
    with pytest.raises(rolltape.StepMissingError, match="stage 'rolout'"):
        rolltape.pool(tape, stage="rolout")
    with pytest.raises(rolltape.TapeNotFoundError):
        rolltape.pool(tmp_path / "nowhere")
    with pytest.raises(rolltape.ConfigError, match="at least one tape"):
        rolltape.pool([])


def test_the_same_uid_on_two_tapes_is_two_groups(tmp_path: Path) -> None:
    one = record(tmp_path / "one", {0: {"uid": ["0", "0"], "response": ["x", "y"], "reward": [0.0, 0.0]}})
    two = record(tmp_path / "two", {0: {"uid": ["0", "0"], "response": ["x", "y"], "reward": [1.0, 1.0]}})
    pool = rolltape.pool([one, two])
    assert pool.facts["pass_rate"].to_pylist() == [0.0, 0.0, 1.0, 1.0], (
        "without prompts, a uid is of its step"
    )
    assert [len(batch) for batch in pool.batches(3)] == [2, 2]
    assert len(pool.unique("prompt")) == 2
    same = record(tmp_path / "same", {0: rows()})
    again = record(tmp_path / "again", {3: rows(reward=[1.0, 1.0])})
    pool = rolltape.pool([same, again])
    assert pool.facts["pass_rate"].to_pylist() == [0.75] * 4, "the same prompt is the same on every tape"
    assert [len(batch) for batch in pool.batches(3)] == [2, 2], "and yet these are two groups"
    assert [len(batch) for batch in pool.batches(3, together="prompt")] == [4]
    copy = tmp_path / "copy"
    shutil.copytree(same, copy)
    with pytest.raises(rolltape.ConfigError, match="the same tape"):
        rolltape.pool([same, copy])


def test_tokens_of_different_tokenizers_are_not_mixed(tmp_path: Path) -> None:
    one = record(tmp_path / "one", {0: rows()}, fingerprint={"tokenizer": "qwen"})
    two = record(tmp_path / "two", {0: rows(prompt=["b", "b"])}, fingerprint={"tokenizer": "llama"})
    pool = rolltape.pool([one, two])
    assert len(pool.where("reward > 0")) == pool.arrow().num_rows - 2 == 2
    for make in (pool.training, pool.recorded):
        with pytest.raises(rolltape.BatchError, match="different tokenizers"):
            make()
    assert len(pool.where(f"tape == {str(one)!r}").training()) == 2


def test_columns_and_dtypes_that_differ_over_steps(tmp_path: Path) -> None:
    first = rows(value=np.array([1, 2], np.int32), extra=["x", "y"])
    other = rows("v", value=np.array([0.5, 1.5], np.float32), response_ids=[np.array([1], np.int16)] * 2)
    tape = record(tmp_path / "tape", {0: first, 1: other})
    table = rolltape.pool(tape).arrow()
    assert table["value"].to_pylist() == [1.0, 2.0, 0.5, 1.5]
    assert table["extra"].to_pylist() == ["x", "y", None, None]
    assert len(rolltape.pool(tape, where="extra == 'x'")) == 1
    assert len(rolltape.pool(tape, where="not extra == 'x'")) == 1, "a missing column is unknown"
    assert len(rolltape.pool(tape, where="value <= 1")) == 2
    assert [row.tolist() for row in rolltape.pool(tape).training().response_ids] == [[5, 6], [7], [1], [1]]
    with pytest.raises(rolltape.BatchError) as error:
        rolltape.pool(tape).recorded()
    assert error.value.hint, str(error.value)


def test_a_tape_that_changed_since_it_was_indexed(tmp_path: Path) -> None:
    place = record(tmp_path / "tape", {0: rows(), 1: rows("v", reward=[0.0, 0.0])})
    build_index(rolltape.open(place))
    pool = rolltape.pool(place)
    with rolltape.Tape(place, mode="rewrite") as tape:
        call = tape.stage("rollout")(lambda: rows("w", reward=[1.0, 1.0]))
        with tape.step(1):
            call()
    assert len(pool.where("step == 0").training()) == 2, "what did not change is still there"
    with pytest.raises(rolltape.FileReplacedError, match="since the pool was made"):
        pool.training()
    fresh = rolltape.pool(place)
    assert fresh.facts["reward"].to_pylist() == [0.0, 1.0, 1.0, 1.0]
    assert fresh[2]["uid"] == "w"
    (place / "train/rollout/step_000001.parquet").unlink()
    with pytest.raises(rolltape.FileReplacedError, match="is gone"):
        fresh.training()
    assert len(rolltape.pool(place)) == 2


def test_an_index_that_says_something_else_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = record(tmp_path / "tape", {0: rows()})
    real = sample_index.RecordedSamples.table

    def lying(samples: Any) -> Any:
        table = real(samples)
        column = pc.add(table["reward"], 1.0)
        return table.set_column(table.schema.get_field_index("reward"), table.schema.field("reward"), column)

    with monkeypatch.context() as patched:
        patched.setattr(sample_index.RecordedSamples, "table", lying)
        build_index(rolltape.open(place))
    pool = rolltape.pool(place, where="reward > 1.5")
    assert len(pool) == 1, "it can only be seen when the recording is opened"
    with pytest.raises(rolltape.CorruptFileError, match="the index of samples says something else"):
        pool.training()


def test_damaged_recordings_and_damaged_parts_of_an_index(tmp_path: Path) -> None:
    place = record(tmp_path / "tape", {0: rows(), 1: rows("v")})
    build_index(rolltape.open(place))
    part = next((place / "samples.index/train/rollout").iterdir())
    data = bytearray(part.read_bytes())
    data[len(data) // 3] ^= 255
    part.write_bytes(data)
    assert len(rolltape.pool(place)) == 4, "an index is done without"
    part.unlink()
    file = place / "train/rollout/step_000001.parquet"
    file.write_bytes(file.read_bytes()[:-40])
    pool = rolltape.pool(place)
    assert len(pool) == 2
    assert [Path(name).name for name in pool.unreadable] == [file.name]


def test_calls_of_one_sample(tmp_path: Path) -> None:
    place = tmp_path / "tape"
    with rolltape.Tape(place, mode="record") as tape:
        call = tape.stage("rollout")(
            lambda at: {"uid": f"u{at}", "prompt_ids": np.array([1, at]), "response_ids": np.arange(at + 1),
                        "reward": float(at), "logprobs": np.full(at + 1, -0.5, np.float32)}
        )  # fmt: skip
        for at in range(3):
            with tape.step(0, key=f"call {at}"):
                call(at)
    pool = rolltape.pool(place)
    assert sorted(pool.facts["reward"].to_pylist()) == [0.0, 1.0, 2.0]
    assert len(pool.where("reward > 0")) == 2
    found = pool.where("reward == 2").training()
    assert (found.response_ids[0].tolist(), found.logprobs[0].tolist()) == ([0, 1, 2], [-0.5] * 3)  # type: ignore[index]


def test_deduplicated_by_prompt_and_by_response(tmp_path: Path) -> None:
    ids: Callable[..., list[np.ndarray]] = lambda *rows: [np.array(row) for row in rows]  # noqa: E731
    one = rows(response_ids=ids([5, 6], [5, 6]))
    two = rows("v", prompt=["a", "b"], prompt_ids=ids([1], [2]), response_ids=ids([5, 6], [5, 6]))
    three = {"uid": ["w", "w"], "prompt": ["c", "c"], "response": ["yes", "yes"], "reward": [1.0, 0.0]}
    tape = record(tmp_path / "tape", {0: one, 1: two, 2: three})
    pool = rolltape.pool(tape)
    assert [(r["step"], r["index"]) for r in pool.unique("prompt")] == [(0, 0), (1, 1), (2, 0)]
    assert len(pool.unique("response")) == 3
    assert len(pool.unique("response").where("step == 0")) == 1
    with pytest.raises(rolltape.ConfigError, match="is not one of prompt, response"):
        pool.unique("reward")


@pytest.mark.parametrize("size", [0, -1, 2.5, "4", None, True])
def test_sizes_of_batches_that_are_none(tmp_path: Path, size: Any) -> None:
    pool = rolltape.pool(record(tmp_path / "tape", {0: rows()}))
    with pytest.raises(rolltape.ConfigError, match="at least 1 sample"):
        list(pool.batches(size))


def test_what_has_no_tokens_cannot_be_trained_on(tmp_path: Path) -> None:
    tape = record(
        tmp_path / "tape", {0: {"prompt": ["a", "b"], "response": ["x", "y"], "reward": [0.0, 1.0]}}
    )
    pool = rolltape.pool(tape)
    with pytest.raises(rolltape.BatchError, match="no token ids to train on"):
        pool.training()
    assert pool.responses() == ["x", "y"]
    some = record(tmp_path / "some", {0: rows(), 1: rows("v", logprobs=[np.zeros(2), np.zeros(1)])})
    with pytest.raises(rolltape.BatchError, match="1 of 2 recordings have no log-probs"):
        rolltape.pool(some).training()
    wrong = record(tmp_path / "wrong", {0: rows(logprobs=[np.zeros(7), np.zeros(9)])})
    with pytest.raises(rolltape.BatchError, match="7 log-probs for a response of 2 tokens"):
        rolltape.pool(wrong).training()


def test_a_tape_that_is_being_recorded(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        call = tape.stage("rollout")(lambda step: rows(f"u{step}"))
        for step in range(3):
            with tape.step(step):
                call(step)
            assert len(rolltape.pool(tape)) == 2 * (step + 1), "what was recorded so far"
    for nothing in (rolltape.Tape(mode="off"), 7, None):
        with pytest.raises(rolltape.ConfigError, match="is no tape"):
            rolltape.pool(nothing)  # type: ignore[arg-type]
