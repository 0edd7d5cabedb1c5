"""Without a word in the code, a replay is only given what the recording was given: by digest, by name."""

from __future__ import annotations

import logging
import os
import queue
import random
import re
import subprocess
import sys
import threading
import types
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import rolltape
from rolltape import MismatchError
from rolltape.batch.digest import digest
from tests.batches import rollouts
from tests.exact import roundtrip
from tests.stacks import examples
from tests.taping import ROOT, Rollout, files
from tests.values import values

PROMPTS = ["why?", "how?", "when?", "who?"]
IDS = np.array([[1, 2, 3, 0], [4, 5, 0, 0], [6, 0, 0, 0]])


def call(
    directory: Path,
    mode: str,
    *args: Any,
    function: Callable[..., Any] = lambda given: [1],
    options: Mapping[str, Any] | None = None,
    declared: Mapping[str, Any] | None = None,
    **named: Any,
) -> Any:
    with rolltape.Tape(directory, mode=mode, **(options or {})) as tape:
        stage = tape.stage("rollout", **(declared or {}))(function)
        with tape.step(0):
            return stage(*args, **named)


def alarms(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


@dataclass
class Sampling:
    temperature: float = 0.7
    n: int = 8


class Colour(Enum):
    RED = 1
    BLUE = 2


OTHERS = {
    "a prompt": (PROMPTS, ["why?", "how?", "WHEN?", "who?"], "`given[2]`, now another one"),
    "fewer": (PROMPTS, PROMPTS[:1], "`given`: a list of 4, now a list of 1"),
    "more": (PROMPTS, PROMPTS * 2 + ["x"], "`given`: a list of 4, now a list of 9"),
    "order": (PROMPTS, PROMPTS[::-1], "now the same 4 entries in another order"),
    "a token": (IDS, IDS + np.eye(3, 4, 1, int)[[0, 2, 1]] * [[1], [0], [0]], "`given[0]`, now another one"),
    "two tokens": (IDS, IDS + 1, "`given[0]`, now another one, and 3 of 3 entries differ"),
    "shape": (IDS, IDS[:, :3], "int64 [3, 4], now int64 [3, 3]"),
    "dtype": (IDS, IDS.astype(np.int32), "int64 [3, 4], now int32 [3, 4]"),
    "shape of floats": (IDS / 7, (IDS / 7)[:2], "float64 [3, 4], now float64 [2, 4]"),
    "a number": (8, 9, "`given` = 8, now 9"),
    "a setting": ({"top_k": 5, "t": 0.7}, {"top_k": 5, "t": 1.0}, "`given.t` = 0.7, now 1.0"),
    "a field": (Sampling(), Sampling(n=4), "`given.n` = 8, now 4"),
    "deep": ({"a": {"b": {"c": [1]}}}, {"a": {"b": {"c": [2]}}}, "`given.a.b.c[0]`, now another one"),
    "one entry more": ({"a": 1}, {"a": 1, "b": "x"}, "`given.b`: (absent), now text of 1 character"),
    "one entry less": ({"a": 1, "b": "x"}, {"a": 1}, "`given.b`: text of 1 character, now (absent)"),
    "text": ("a", "b", "`given` (text of 1 character), now another one"),
    "bytes": (b"a", b"b", "`given` (1 byte), now another one"),
    "true": (True, False, "`given`: True, now False"),
    "nothing": (None, 0, "`given`: None, now 0"),
    "enum": (Colour.RED, Colour.BLUE, "`given`"),
    "path": (Path("/data/a"), Path("/data/b"), "`given`"),
    "set": ({"a", "b"}, {"a", "c"}, "`given`"),
    "long": (list(range(999)), [*range(998), 0], "`given` (a list of 999), now another one"),
    "tokens": ([[1, 2], [3]], [[1, 2], [4]], "`given[1]`, now another one"),
    "large int": (2**80, 2**80 + 1, "`given`"),
    "strings": (np.array(["a", "b"]), np.array(["a", "c"]), "`given[1]`"),
    "objects": (np.array(["a", None], object), np.array(["b", None], object), "`given`"),
    "values": ({"a": "x", "b": "y"}.values(), {"a": "x", "b": "z"}.values(), "`given[1]`, now another one"),
    "slice": (slice(0, 4), slice(0, 9), "`given`"),
    "pattern": (re.compile("a"), re.compile("b"), "`given`"),
    "model in a new folder": ("/tmp/tmpabcd_123/a", "/tmp/tmp987zyxw_/b", "`given`"),
    "numbered model": ("/tmp/model_v1", "/tmp/model_v2", "`given`"),
    "address of an image": ({"url": "https://a/1.png"}, {"url": "https://a/2.png"}, "`given.url`"),
    "a date in a prompt": (["on 2026-11-17 06:55?"], ["on 2026-11-17 06:56?"], "`given[0]`"),
    "chat": ([[{"role": "user", "content": "a"}]], [[{"role": "user", "content": "b"}]], "`given[0]`"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_argument_is_an_error_that_names_it(tmp_path: Path, case: str) -> None:
    recorded, other, text = OTHERS[case]
    call(tmp_path / "t", "record", recorded)
    assert files(tmp_path / "t") == {"tape.json", "train/rollout/step_000000.parquet"}, "the data is not kept"
    assert call(tmp_path / "t", "replay", recorded) == [1]
    with pytest.raises(MismatchError) as caught:
        call(tmp_path / "t", "replay", other)
    assert text in str(caught.value)
    assert "step_000000.parquet" in str(caught.value)
    assert "match={'inputs': 'warn'}" in str(caught.value)


ALIKE = {
    "numpy's number": (4, np.int64(4)),
    "numpy's float": (0.5, np.float32(0.5)),
    "whole float": (1, 1.0),
    "tuple": (PROMPTS, tuple(PROMPTS)),
    "dict order": ({"a": 1, "b": "x"}, OrderedDict(b="x", a=1)),
    "memory order": (IDS, np.asfortranarray(IDS)),
    "view": (IDS, np.repeat(IDS, 2, axis=1)[:, ::2]),
    "byte order": (IDS, IDS.astype(">i8")),
    "deque": ([1, 2], deque([1, 2])),
    "dataclass": (Sampling(), {"temperature": 0.7, "n": 8}),
    "namespace": ({"n": 8}, types.SimpleNamespace(n=8)),
    "nan": (float("nan"), float("nan")),
    "set": ({"a", "b", "c"}, {"c", "b", "a"}),
    "keys": ({1: "a", None: "b"}, {None: "b", 1: "a"}),
}


@pytest.mark.parametrize("case", ALIKE)
def test_what_means_the_same_is_the_same(tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture) -> None:
    recorded, other = ALIKE[case]
    call(tmp_path / "t", "record", recorded)
    call(tmp_path / "t", "replay", other)
    assert not alarms(caplog)


MAY_DIFFER = {
    "log-probs": (np.zeros(5, np.float32), np.ones(5, np.float32), "`given` (float32 [5])"),
    "half": (np.zeros(5, np.float16), np.zeros(5, np.float32), "other values"),
    "weights": ({"w": np.zeros(5), "n": 1}, {"w": np.ones(5), "n": 1}, "`given.w` (float64 [5])"),
    "list": ([0.1, 0.2], [0.1, 0.3], "`given` (a list of 2)"),
    "uuid": (str(uuid.uuid4()), str(uuid.uuid4()), "`given` (text of 36 characters)"),
    "request": (f"req-{uuid.uuid4()}", f"req-{uuid.uuid4()}", "`given`"),
    "uuids": (uuid.uuid4(), uuid.uuid4(), "`given` (a UUID)"),
    "uid column": (
        {"uid": np.array(["3f2a", "91bc"], object), "ids": IDS},
        {"uid": np.array(["77aa", "0000"], object), "ids": IDS},
        "`given.uid`",
    ),
    "records": ([{"uid": "3f2a", "p": "x"}], [{"uid": "91bc", "p": "x"}], "other values in `uid`"),
    "device": ("cuda:0", "cpu", "`given`"),
    "folder of tempfile": ("/tmp/tmpabcd_123/a", "/tmp/tmp987zyxw_/a", "`given`"),
    "folder of pytest": (
        Path("/tmp/pytest-of-me/pytest-3/x"),
        Path("/tmp/pytest-of-me/pytest-41/x"),
        "`given`",
    ),
    "moment": ("2026-11-17T06:55:01.123", "2026-11-18T07:00:00.456", "`given`"),
    "name by the clock": ("grpo-2026-11-17_06-55-01", "grpo-2026-11-17_07-00-00", "`given`"),
    "output": (
        {"output_dir": "/data/a", "n": 1},
        {"output_dir": Path("/data/b"), "n": 1},
        "`given.output_dir`",
    ),
    "server": ({"base_url": "http://localhost:4321"}, {"base_url": None}, "`given.base_url`"),
    "job": ([{"job_id": 4711, "p": "x"}], [{"job_id": 4712, "p": "x"}], "other values in `job_id`"),
    "ports": ({"port": [8000, 8001]}, {"port": [9000, 9001]}, "`given.port`"),
    "clock": ({"now": 17_000_000_000}, {"now": 3.5}, "`given.now`"),
    "computed setting": (0.1234567, 0.1234568, "`given` = 0.1234567, now 0.1234568"),
}


@pytest.mark.parametrize("case", MAY_DIFFER)
def test_what_may_differ_is_warned_about_once_by_name(
    tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorded, other, text = MAY_DIFFER[case]
    for mode, value in (("record", recorded), ("replay", other)):
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            stage = tape.stage("rollout")(lambda given: [1])
            for step in range(3):
                with tape.step(step):
                    stage(value)
    [alarm] = alarms(caplog)
    assert text in alarm
    with pytest.raises(MismatchError):
        call(tmp_path / "t", "replay", other, options={"match": {"inputs": "error"}})


def test_match_and_inputs_change_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    call(tmp_path / "t", "record", PROMPTS)
    assert call(tmp_path / "t", "replay", ["x"], options={"match": {"inputs": "warn"}}) == [1]
    assert "a list of 4, now a list of 1" in "".join(alarms(caplog))
    caplog.clear()
    assert call(tmp_path / "t", "replay", ["x"], options={"match": {"inputs": "ignore"}}) == [1]
    assert call(tmp_path / "t", "replay", ["x"], declared={"inputs": False}) == [1]
    assert not alarms(caplog)


def test_a_recording_without_digests_replays_as_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    call(tmp_path / "t", "record", PROMPTS, declared={"inputs": False})
    assert rolltape.Tape(tmp_path / "t", mode="replay").recording(0).about.arguments is None
    assert call(tmp_path / "t", "replay", ["x"]) == [1]
    assert not alarms(caplog)


def test_recorded_inputs_are_compared_by_a_stage_that_asks_for_none(tmp_path: Path) -> None:
    call(tmp_path / "t", "record", PROMPTS, declared={"inputs": True})
    assert call(tmp_path / "t", "replay", PROMPTS) == [1]
    with pytest.raises(MismatchError, match="a list of 4, now a list of 1"):
        call(tmp_path / "t", "replay", ["x"])


def test_digests_are_compared_by_a_stage_that_asks_for_inputs(tmp_path: Path) -> None:
    call(tmp_path / "t", "record", PROMPTS)
    for inputs in (True, ["given"]):
        assert call(tmp_path / "t", "replay", PROMPTS, declared={"inputs": inputs}) == [1]
        with pytest.raises(MismatchError, match="a list of 4, now a list of 1"):
            call(tmp_path / "t", "replay", ["x"], declared={"inputs": inputs})


def test_it_is_the_argument_before_the_call_and_edits_in_place_change_nothing(tmp_path: Path) -> None:
    def generate(prompts: list[str], ids: np.ndarray) -> list[str]:
        prompts[0] = "edited"
        ids[:] = -1
        return ["x"]

    prompts, ids = list(PROMPTS), IDS.copy()
    with rolltape.Tape(tmp_path / "t", mode="record", background=True) as tape:
        stage = tape.stage("rollout")(generate)
        with tape.step(0):
            stage(prompts, ids)
            prompts.clear()
    call(tmp_path / "t", "replay", list(PROMPTS), IDS.copy(), function=generate)
    with pytest.raises(MismatchError):
        call(tmp_path / "t", "replay", ["edited", *PROMPTS[1:]], IDS.copy(), function=generate)


def test_what_a_stage_collects_in_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for mode in ("record", "replay"):
        seen: list[int] = []
        counts: dict[str, int] = {}

        def generate(step: int, seen: list[int], counts: dict[str, int]) -> list[int]:
            seen.append(step)
            counts[f"step {step}"] = 1
            return [step]

        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            stage = tape.stage("rollout")(generate)
            for step in range(3):
                with tape.step(step):
                    stage(step, seen, counts)
    assert ["seen" in alarm or "counts" in alarm for alarm in alarms(caplog)] == [True, True]


class Engine:
    def generate(self) -> None: ...


class Opaque:
    def __init__(self) -> None:
        self.text = "x"


def test_what_has_no_digest_is_left_out_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rolltape")

    class Trainer:
        def generate(self, prompts: Any, model: Any, reward: Any, rows: Any, opaque: Any) -> list[int]:
            return [next(rows)]

    for mode in ("record", "replay"):
        caplog.clear()
        rows = iter([7, 8, 9])
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            stage = tape.stage("rollout")(Trainer.generate)
            for step in range(2):
                with tape.step(step):
                    assert stage(Trainer(), PROMPTS, Engine(), len, rows, {"a": Opaque()}) == [7 + step]
        [told] = [one for one in caplog.records if "cannot be digested" in one.getMessage()]
        for name in ("self", "model", "reward", "rows", "opaque"):
            assert f"`{name}" in told.getMessage()
        assert told.levelno == (logging.WARNING if mode == "record" else logging.INFO), "opaque may be data"
        assert next(rows) == (9 if mode == "record" else 7), "nothing was taken"
    with pytest.raises(MismatchError, match="prompts"):
        call(tmp_path / "t", "replay", Trainer(), ["x"], 1, 2, 3, 4, function=Trainer.generate)


@pytest.mark.parametrize(
    ("value", "is_data", "path"),
    [
        ((text for text in PROMPTS), True, "given"),
        (map(str, PROMPTS), True, "given"),
        ([Opaque(), Opaque()], True, "given[…]"),
        (random.Random(1), False, "given"),
        (np.random.RandomState(1), False, "given"),
        (logging.getLogger("mine"), False, "given"),
        (threading.Lock(), False, "given"),
        (queue.Queue(), False, "given"),
        (len, False, "given"),
        (sys.stdout, False, "given"),
    ],
)
def test_only_what_may_be_data_is_warned_about(value: Any, is_data: bool, path: str) -> None:
    found, [left] = digest(value, "given")
    assert (found, left.path, left.is_data) == (None, path, is_data)


def test_the_error_says_how_to_compare_less_and_that_works(tmp_path: Path) -> None:
    def generate(prompts: list[str], packing: bool) -> list[int]:
        return [1]

    call(tmp_path / "t", "record", PROMPTS, False, function=generate)
    with pytest.raises(MismatchError) as caught:
        call(tmp_path / "t", "replay", PROMPTS, True, function=generate)
    assert "tape.stage('rollout', inputs=['prompts'])" in str(caught.value)
    less = {"inputs": ["prompts"]}
    assert call(tmp_path / "t", "replay", PROMPTS, True, function=generate, declared=less) == [1]
    with pytest.raises(MismatchError):
        call(tmp_path / "t", "replay", PROMPTS[:1], True, function=generate, declared=less)


def test_looking_at_arguments_draws_no_random_numbers(tmp_path: Path) -> None:
    import random

    random.seed(3)
    np.random.seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist()
    digest({"a": [1.0, "x"], "rng": np.random.default_rng(1), "ids": IDS}, "given")
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_renamed_added_and_removed_arguments(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    call(tmp_path / "t", "record", PROMPTS, function=lambda prompts: [1])
    call(tmp_path / "t", "replay", PROMPTS, function=lambda questions: [1])
    call(tmp_path / "t", "replay", PROMPTS, function=lambda prompts, debug=False: [1])
    assert not alarms(caplog)
    with pytest.raises(MismatchError, match="`questions`"):
        call(tmp_path / "t", "replay", ["x"], function=lambda questions: [1])
    call(tmp_path / "t", "replay", PROMPTS, 5, function=lambda prompts, top_k: [1])
    assert "no argument `top_k`" in alarms(caplog)[-1]


def test_functions_that_do_not_say_what_their_arguments_are(tmp_path: Path) -> None:
    call(tmp_path / "t", "record", 3, 4, function=max)
    assert call(tmp_path / "t", "replay", 3, 4, function=max) == 4
    with pytest.raises(MismatchError, match="`argument 1` = 4, now 5"):
        call(tmp_path / "t", "replay", 3, 5, function=max)


def test_keyword_rests_are_named(tmp_path: Path) -> None:
    call(tmp_path / "t", "record", 1, top_k=5, function=lambda *rest, **options: [1])
    with pytest.raises(MismatchError, match=r"`options.top_k` = 5, now 6"):
        call(tmp_path / "t", "replay", 1, top_k=6, function=lambda *rest, **options: [1])


def test_a_substitute_and_a_stage_that_runs_in_every_replay_are_not_compared(tmp_path: Path) -> None:
    call(tmp_path / "t", "record", PROMPTS)
    with rolltape.Tape(tmp_path / "t", mode="replay", on_miss="last") as tape, tape.step(5):
        assert tape.stage("rollout")(lambda given: [2])(["others"]) == [1]
    call(tmp_path / "s", "record", PROMPTS, declared={"replay": False})
    assert call(tmp_path / "s", "replay", ["x"], declared={"replay": False}) == [1]


def test_auto_compares_what_it_replays(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="auto") as tape:
        Rollout(tape).run([0])
    with rolltape.Tape(tmp_path / "t", mode="auto") as tape, pytest.raises(MismatchError), tape.step(0):
        Rollout(tape).generate(5)


def test_values_that_hold_themselves_or_raise_end_no_run(tmp_path: Path) -> None:
    loop: list[Any] = ["x"]
    loop += [loop, loop]

    class Angry:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    class AngryMapping(dict[str, int]):
        def __iter__(self) -> Iterator[str]:
            raise RuntimeError("no")

    for value in (loop, {"a": Angry()}, AngryMapping(a=1)):
        call(tmp_path / f"{id(value)}", "record", value)
        assert call(tmp_path / f"{id(value)}", "replay", value) == [1]


def test_what_is_kept_of_a_huge_argument_is_small(tmp_path: Path) -> None:
    huge = {f"layer.{at}": {"ids": np.arange(200), "rows": ["x"] * 200} for at in range(300)}
    call(tmp_path / "t", "record", huge)
    call(tmp_path / "t", "replay", huge)
    many = {f"p{at}": {f"q{inner}": ["x"] * 200 for inner in range(60)} for at in range(60)}
    call(tmp_path / "m", "record", many)
    for name in "tm":
        assert (tmp_path / name / "train/rollout/step_000000.parquet").stat().st_size < 200_000
    huge["layer.7"]["ids"][5] = -1
    with pytest.raises(MismatchError, match=r"recorded `given.layer.7`, now another one"):
        call(tmp_path / "t", "replay", huge)


@given(values | rollouts())
@settings(max_examples=examples(60))
def test_what_comes_back_from_a_tape_is_what_was_given(value: Any) -> None:
    for batch in (value, {"x": [value, value], "y": value}):
        assert digest(batch, "given") == digest(batch, "given") == digest(roundtrip(batch), "given")


def test_digests_are_the_same_in_every_process() -> None:
    program = """
import numpy as np
from rolltape.batch.digest import digest
value = {"stop": {"</s>", "<end>", "###", "a"}, "ids": np.arange(9), "text": ["x"], 3: frozenset({1, 2})}
print(digest(value, "given")[0])
"""
    said = set()
    for seed in ("0", "1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "src")}
        said.add(subprocess.check_output([sys.executable, "-c", program], env=environ, text=True))
    assert len(said) == 1


@pytest.mark.parametrize("size", [2**20 + 1, 2**31, 2**63, 7**400])
def test_a_long_range_is_not_counted_out(size: int) -> None:
    """Nor is one that has more numbers than a list can hold."""
    for make in (lambda one: one, lambda one: [one, one], lambda one: {"x": [(one,)], "y": {"z": one}}):
        one = digest(make(range(size)), "given")
        assert one == digest(make(range(size)), "given") == digest(roundtrip(make(range(size))), "given")
        for other in (range(size + 1), range(1, size), range(0, size, 2), range(0, -size, -1)):
            assert digest(make(other), "given") != one
