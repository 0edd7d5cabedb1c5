"""A sample is a row of a batch, or what a named call returned: to `ls`, `show`, `export` and `diff` alike."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rolltape
from rolltape.batch import dismantle_one
from rolltape.batch.columns import ArrayColumn
from rolltape.batch.one_sample import SampleChoice, is_one
from rolltape.batch.tree import Tree
from rolltape.codec.file import encode
from rolltape.codec.pack import pack
from rolltape.errors import RolltapeError
from tests.batches import views
from tests.cli_tapes import run
from tests.exact import assert_same, open_bytes
from tests.values import values

anything = values | views()
fields = st.sampled_from(["uid", "prompt", "tokens", "responses", "reward", "meta", "x.y"])


@dataclass
class Answer:
    uid: str
    tokens: list[int]
    log_probs: np.ndarray
    reward: float


@dataclass
class Completion:
    text: str
    token_ids: list[int]


class Pair(NamedTuple):
    response: str
    score: np.float32


def answer(key: str, length: int) -> Answer:
    return Answer(key, list(range(5, 5 + length)), np.linspace(-1, 0, length, dtype=np.float32), length / 2)


ONE = {
    "a dataclass": lambda key, n: answer(key, n),
    "a dict": lambda key, n: {"response_ids": np.arange(n), "log_probs": np.zeros(n), "reward": 1.0},
    "token lists alone": lambda key, n: {"tokens": list(range(n)), "logps": [0.5] * n},
    "a named tuple": lambda key, n: Pair("x" * n, np.float32(n)),
    "a tuple": lambda key, n: (list(range(n)), 0.5),
    "scalars only": lambda key, n: {"reward": n / 3, "correct": True},
    "a number": lambda key, n: n / 3,
    "a text": lambda key, n: "x" * n,
    "an array": lambda key, n: np.arange(n),
    "a chat": lambda key, n: {"messages": [{"role": "user", "content": "?"}] * n, "response": "yes"},
    "a trajectory": lambda key, n: {"uid": key, "reward": 1.0, "turns": [{"role": "tool", "ids": [1]}] * n},
    "no answer": lambda key, n: None,
}
SEVERAL = {
    "a list of samples": lambda key, n: [answer(f"{key}{row}", 3) for row in range(n)],
    "a batch": lambda key, n: {"prompts": np.zeros((n, 4), np.int64), "reward": np.zeros(n)},
    "a batch of texts": lambda key, n: {"uid": key, "responses": ["x"] * n, "rewards": [0.5] * n},
    "a batch in a batch": lambda key, n: {
        "batch": {"input_ids": np.zeros((n, 4), np.int64)},
        "meta": {"t": 1},
    },
    "a group": lambda key, n: {"uid": key, "completions": [Completion("a", [1, 2])] * n},
    "lists of ids": lambda key, n: {"response_ids": [[1, 2]] * n},
    "rows": lambda key, n: np.zeros((n, 7)),
}


def record(folder, returned, *, keys=("a", "b", "c"), **options):
    """One call for each key in a step."""
    with rolltape.Tape(folder, mode="record") as tape:
        stage = tape.stage("rollout", **options)(lambda key: returned[key])
        for key in keys:
            with tape.step(0, key=key):
                stage(key)
    return rolltape.open(folder)


@pytest.mark.parametrize("kind", ONE)
def test_a_named_call_that_returns_one_object_is_one_sample(kind, tmp_path):
    returned = {key: ONE[kind](key, length) for key, length in zip("abc", (3, 1, 5), strict=True)}
    samples = record(tmp_path / "tape", returned).samples(0)
    assert run("check", tmp_path / "tape").exit_code == 0
    assert len(samples) == 3
    assert len(set(samples.ids)) == 3
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        stage = tape.stage("rollout")(lambda key: pytest.fail("it ran"))
        for key in "abc":
            with tape.step(0, key=key):
                assert_same(returned[key], stage(key))


@pytest.mark.parametrize("kind", SEVERAL)
def test_a_named_call_that_returns_a_batch_has_a_sample_per_row(kind, tmp_path):
    returned = {key: SEVERAL[kind](key, length) for key, length in zip("abc", (3, 2, 5), strict=True)}
    assert len(record(tmp_path / "tape", returned).samples(0)) == 10


@pytest.mark.parametrize("kind", ["a dict", "a dataclass", "scalars only"])
def test_a_call_without_a_name_has_a_sample_per_row_unless_the_stage_says_otherwise(kind, tmp_path):
    for choice, samples in (("auto", None), ("one", 1), ("rows", None)):
        with rolltape.Tape(tmp_path / choice, mode="record") as tape, tape.step(0):
            tape.stage("rollout", samples=choice)(lambda: ONE[kind]("a", 4))()
        found = len(rolltape.open(tmp_path / choice).samples(0))
        assert found == (samples or (0 if kind == "scalars only" else 4)), choice


def test_where_it_cannot_be_told_the_stage_says_it(tmp_path):
    returned = {key: {"rewards": [0.1, 0.2, 0.3]} for key in "abc"}
    assert len(record(tmp_path / "auto", returned).samples(0)) == 3
    assert len(record(tmp_path / "rows", returned, samples="rows").samples(0)) == 9
    batches = {key: SEVERAL["a batch"](key, 4) for key in "abc"}
    samples = record(tmp_path / "one", batches, samples="one").samples(0)
    assert len(samples) == 3
    assert samples[1]["prompts"].shape == (4, 4)


def test_an_unknown_choice_is_refused_with_the_right_one(tmp_path):
    with pytest.raises(rolltape.ConfigError, match="did you mean `rows`"):
        rolltape.Tape(tmp_path / "tape", mode="record").stage("rollout", samples="row")


def test_ls_show_and_export_count_the_same_samples(tmp_path):
    returned = {key: answer(f"u{key}", length) for key, length in zip("abc", (3, 1, 5), strict=True)}
    record(tmp_path / "tape", returned)
    listed = json.loads(run("ls", tmp_path / "tape", "--json").stdout)["recordings"]
    assert [row["samples"] for row in listed] == [1, 1, 1]
    assert [row["prompt_tokens"] for row in listed] == [3, 1, 5]
    shown = json.loads(run("show", tmp_path / "tape", "0", "--samples", "0-", "--json").stdout)
    assert [(one["uid"], one["columns"]["reward"]) for one in shown["samples"]] == [
        ("ua", 1.5), ("ub", 0.5), ("uc", 2.5)
    ]  # fmt: skip
    exported = run("export", tmp_path / "tape", "--format", "jsonl", "--to", "-").stdout.splitlines()
    assert [json.loads(line)["tokens"] for line in exported] == [[5, 6, 7], [5], [5, 6, 7, 8, 9]]


def test_scalars_alone_are_told_by_the_name_of_their_call(tmp_path):
    record(tmp_path / "tape", {"p7": {"reward": 0.5}, "p8": {"reward": 1.0}}, keys=("p7", "p8"))
    exported = run("export", tmp_path / "tape", "--format", "jsonl", "--to", "-").stdout.splitlines()
    assert [(row["uid"], row["reward"]) for row in map(json.loads, exported)] == [("p7", 0.5), ("p8", 1.0)]


def test_a_difference_is_found_in_its_sample_whatever_the_order_of_the_calls(tmp_path):
    before = {key: answer(f"u{key}", 4) for key in "abc"}
    record(tmp_path / "one", before)
    after = {key: answer(f"u{key}", 4) for key in "abc"}
    after["b"].log_probs[2] = 9.0
    record(tmp_path / "two", after, keys=("c", "a", "b"))
    done = run("diff", tmp_path / "one", tmp_path / "two")
    assert done.exit_code == 1
    assert "log_probs" in done.stdout.splitlines()[0]
    assert "ub" in done.stdout.splitlines()[0]


@settings(max_examples=150, deadline=None)
@given(value=st.dictionaries(fields, anything, max_size=4) | anything)
def test_whatever_one_sample_holds_comes_back_as_it_was(value: Any):
    data = b"".join(bytes(piece) for piece in encode(pack(dismantle_one(value))))
    file = open_bytes(data)
    file.verify()
    assert file.samples == 1
    assert_same(value, file.value())


@pytest.mark.parametrize(
    ("node", "size"),
    [
        ({"$row": {"$column": "a", "wrap": {"lib": "numpy"}}}, 0),
        ({"$row": {"$whole": "b"}}, 1),
        ({"$point": {"$column": "a", "wrap": {"lib": "numpy"}}}, 2),
        ({"$point": {"$column": "c", "wrap": {"lib": "numpy"}}}, 1),
    ],
)
def test_a_sample_that_cannot_be_put_together_is_told_without_trying(node: Any, size: int):
    columns = {"a": ArrayColumn(np.zeros(size), "float64")}
    with pytest.raises(RolltapeError):
        Tree(node).check(columns, {})


@given(value=st.dictionaries(fields, anything, max_size=4) | anything)
def test_to_ask_whether_it_is_one_never_fails(value: Any):
    assert is_one(value, SampleChoice.AUTO, named=True) in (True, False)
    assert not is_one(value, SampleChoice.AUTO, named=False)
