"""`rolltape cut --samples` takes just these samples of whatever was returned, or refuses."""

from dataclasses import dataclass

import numpy as np
import pytest

import rolltape
from tests.cli_tapes import in_process, run
from tests.taping import files


@dataclass
class Rollout:
    uid: list[str]
    responses: np.ndarray
    reward: list[float]
    temperature: float = 0.7


@dataclass
class Sample:
    uid: str
    tokens: np.ndarray


UIDS = ["a", "b", "c", "d", "e"]
ROLLOUTS = {
    "dataclass": lambda: Rollout(list(UIDS), np.arange(20).reshape(5, 4), [0.0, 0.25, 0.5, 0.75, 1.0]),
    "list of dataclasses": lambda: [Sample(uid, np.arange(3 + row)) for row, uid in enumerate(UIDS)],
    "groups": lambda: [[Sample(uid, np.arange(3)) for uid in part] for part in ("ab", "c", "de")],
    "object array": lambda: {
        "uid": np.array(UIDS, object),
        "text": np.array([["x"]] * 5 + [None], object)[:5],
    },
    "tuple": lambda: ({"uid": list(UIDS)}, np.arange(5)),
}


def record(folder, value, **stages):
    with rolltape.Tape(folder, mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: value)()
        for name, result in stages.items():
            tape.stage(name)(lambda result=result: result)()
    return folder


@pytest.mark.parametrize("kind", ROLLOUTS)
def test_every_kind_of_batch_is_cut_where_its_class_is_not_known(kind, tmp_path):
    record(tmp_path / "tape", ROLLOUTS[kind]())
    done = in_process("cut", tmp_path / "tape", "--steps", 0, "--samples", "1-3", "--out", tmp_path / "small")
    assert done.returncode == 0, done.stderr
    assert "1 recording, 3 samples" in done.stderr
    assert [uid for uid, _ in rolltape.open(tmp_path / "small").samples(0).ids] == ["b", "c", "d"]
    with rolltape.Tape(tmp_path / "small", mode="replay") as tape, tape.step(0):
        found = tape.stage("rollout")(lambda: pytest.fail("it ran"))()
    if kind == "dataclass":
        assert (found.uid, found.reward, found.temperature) == (["b", "c", "d"], [0.25, 0.5, 0.75], 0.7)
        assert found.responses.tolist() == np.arange(20).reshape(5, 4)[1:4].tolist()
    if kind == "groups":
        assert [[one.uid for one in group] for group in found] == [["b"], ["c"], ["d"]]


def test_of_named_calls_only_those_with_the_samples_are_taken(tmp_path):
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        generate = tape.stage("rollout")(lambda uid: {"uid": f"u{uid}", "tokens": [1, 2, 3]})
        score = tape.stage("reward")(lambda uid: {"reward": 0.5})
        for uid in UIDS:
            with tape.step(0, key=uid):
                generate(uid)
                score(uid)
    done = run("cut", tmp_path / "tape", "--steps", "0", "--samples", "1,3", "--out", tmp_path / "small")
    assert done.exit_code == 0, done.output
    small = rolltape.open(tmp_path / "small")
    assert [uid for uid, _ in small.samples(0).ids] == ["ub", "ud"]
    assert [uid for uid, _ in small.samples(0, "reward").ids] == ["b", "d"]
    assert "6 calls with none of these samples left out" in done.stderr


def test_samples_of_one_prompt_in_several_calls_are_told_apart(tmp_path):
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        generate = tape.stage("rollout")(lambda key: {"prompt": "same", "response": f"answer {key}"})
        for key in ("0", "1", "2"):
            with tape.step(0, key=key):
                generate(key)
    done = run("cut", tmp_path / "tape", "--steps", "0", "--samples", "1", "--out", tmp_path / "small")
    assert done.exit_code == 0, done.output
    assert [row["response"] for row in rolltape.open(tmp_path / "small").samples(0)] == ["answer 1"]


class Odd:
    """A type whose parts do not fit together without all samples."""

    def __init__(self, uid, count):
        assert len(uid) == count, "not all are there"
        self.uid, self.count = uid, count


def test_what_cannot_be_cut_is_an_error_and_nothing_is_left(tmp_path):
    rolltape.register_adapter(
        Odd,
        name="tests.odd",
        to_parts=lambda odd: {"uid": odd.uid, "count": odd.count},
        from_parts=lambda parts: (
            Odd(**parts) if len(parts["uid"]) == parts["count"] else 1 / "samples missing"
        ),
    )
    record(tmp_path / "tape", {"uid": list(UIDS)}, odd=Odd(list(UIDS), 5))
    done = run("cut", tmp_path / "tape", "--steps", "0", "--samples", "1", "--out", tmp_path / "small")
    assert done.exit_code == 2
    assert "a value of 'tests.odd' cannot be cut to some of its samples" in done.stderr
    assert "train/odd/step_000000.parquet" in done.stderr
    assert files(tmp_path / "small") == set()
    assert run("cut", tmp_path / "tape", "--steps", "0", "--out", tmp_path / "small").exit_code == 0


def test_an_adapter_that_is_not_known_here_is_an_error(tmp_path):
    test_what_cannot_be_cut_is_an_error_and_nothing_is_left(tmp_path)
    done = in_process("cut", tmp_path / "tape", "--steps", 0, "--samples", "1", "--out", tmp_path / "other")
    assert done.returncode == 2
    assert "'tests.odd'" in done.stderr
    assert "not registered in this process" in done.stderr


def test_samples_that_nothing_groups_leave_no_group_behind(tmp_path):
    record(tmp_path / "tape", {"text": list("abcd"), "reward": [0.5, 1.0, 0.25, 0.0]})
    done = run("cut", tmp_path / "tape", "--steps", "0", "--samples", "0-1", "--out", tmp_path / "small")
    assert (done.exit_code, "1 recording, 2 samples" in done.stderr, "left behind" in done.stderr) == (
        0,
        True,
        False,
    )
