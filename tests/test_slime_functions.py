"""Rollout functions for slime and miles: what another returns is recorded, and replayed nested as it was.

Against stand-ins of what both import, or against their real code where a checkout is named:
ROLLTAPE_SLIME_SRC=…/slime, and ROLLTAPE_MILES_SRC=…/miles, which needs ray and transformers. What they
import of SGLang, and what is called here has no use for, is left blank where SGLang is not installed.
"""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import rolltape
from rolltape.integrations import miles as miles_functions
from rolltape.integrations import slime as slime_functions
from rolltape.integrations.slime.rollout_function import Rollouts

SOURCES = {"slime": "ROLLTAPE_SLIME_SRC", "miles": "ROLLTAPE_MILES_SRC"}


class Status(Enum):
    PENDING = "pending"
    COMPLETED = "completed"


@dataclass
class SpecInfo:
    spec_verify_ct: int = 0


@dataclass
class Sample:
    """The attributes of the real ones that matter here."""

    index: int | None = None
    group_index: int | None = None
    rollout_id: int | None = None
    prompt: str = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    reward: Any = None
    rollout_log_probs: list[float] | None = None
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    spec_info: SpecInfo = field(default_factory=SpecInfo)

    Status = Status
    SpecInfo = SpecInfo


def standin(package: str) -> dict[str, ModuleType]:
    """The modules that our functions, and their callers, import."""
    names = ["", ".utils", ".utils.types", ".rollout", ".rollout.base_types", ".rollout.sglang_rollout",
             ".rollout.inference_rollout", ".rollout.inference_rollout.compatibility"]  # fmt: skip
    found = {f"{package}{name}": ModuleType(f"{package}{name}") for name in names}
    found[f"{package}.utils.types"].Sample = Sample
    base = found[f"{package}.rollout.base_types"]
    for name, first in (("RolloutFnTrainOutput", "samples"), ("RolloutFnEvalOutput", "data")):
        fields = [(first, Any), ("metrics", Any, None)]
        setattr(base, name, make_dataclass(name, fields, namespace={"__module__": base.__name__}))
    base.RolloutFnConstructorInput = SimpleNamespace
    base.RolloutFnTrainInput = lambda **given: SimpleNamespace(**given, evaluation=False)
    base.RolloutFnEvalInput = lambda **given: SimpleNamespace(**given, evaluation=True)
    base.call_rollout_fn = lambda fn, *args, evaluation: fn(*args, evaluation=evaluation)
    compatibility = found[f"{package}.rollout.inference_rollout.compatibility"]
    compatibility.load_rollout_function = lambda given, path: _resolve(path)(given)
    compatibility.call_rollout_function = lambda fn, given: fn(given)
    return found


class Blank(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports anything of a package that is not there; every name in it is an empty class."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] != self.package:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module):
        def blank(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

        module.__getattr__ = blank


def _resolve(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.fixture(params=["slime", "miles"])
def package(request, monkeypatch):
    source = os.environ.get(SOURCES[request.param])
    if source:
        monkeypatch.syspath_prepend(source)
        absent = [name for name in ("sglang",) if importlib.util.find_spec(name) is None]
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, *map(Blank, absent)])
    else:
        for name, module in standin(request.param).items():
            monkeypatch.setitem(sys.modules, name, module)
    importlib.import_module(f"{request.param}.utils.types")
    importlib.import_module(f"{request.param}.rollout.base_types")
    return request.param


@pytest.fixture(autouse=True)
def no_tape_left_open():
    yield
    if Rollouts._open is not None:
        Rollouts._open.tape.close()
        Rollouts._open = None


@pytest.fixture
def framework(package, tmp_path, monkeypatch):
    """Calls our function as the framework does; its own is ``theirs.generate``, which counts its calls."""
    monkeypatch.setitem(sys.modules, "theirs", theirs := ModuleType("theirs"))
    types = importlib.import_module(f"{package}.utils.types")
    base = importlib.import_module(f"{package}.rollout.base_types")
    calls = []

    def sample(index, group, length):
        made = types.Sample(
            index=index, group_index=group, prompt=f"p{group}", tokens=list(range(length)),
            rollout_log_probs=[-0.1 * i for i in range(length)], reward=index / 3, response="r" * length,
            metadata={"group": group},
        )  # fmt: skip
        made.status = types.Sample.Status.COMPLETED
        made.spec_info.spec_verify_ct = index
        if index == 1:
            made.noted_by_hand = "only here"
        return made

    def generate(args, rollout_id, data_source, evaluation=False):
        calls.append((rollout_id, evaluation))
        lengths = [
            [3, 1 + rollout_id],
            [2],
            [[4, 5], [1]],
        ]  # a group may hold groups: one rollout, two samples
        groups = [[sample(i, g, n) if isinstance(n, int) else [sample(i, g, m) for m in n]
                   for i, n in enumerate(group)] for g, group in enumerate(lengths)]  # fmt: skip
        if evaluation:
            data = {"aime": {"rewards": [0.5, 1.0], "truncated": [True, False], "samples": groups[0]},
                    "gpqa": {"rewards": [0.25], "truncated": [False], "samples": groups[1]}}  # fmt: skip
            return base.RolloutFnEvalOutput(data=data, metrics={"seconds": 1.5 + len(calls)})
        return base.RolloutFnTrainOutput(samples=groups, metrics={"kept": 0.75})

    class Generate:
        def __init__(self, given):
            self.given = given

        def __call__(self, given):
            return generate(self.given.args, given.rollout_id, self.given.data_source, given.evaluation)

    theirs.generate, theirs.Generate = generate, Generate

    def start(mode, **arguments):
        path = "theirs.generate" if package == "slime" else "theirs.Generate"
        args = Namespace(**{"rolltape_rollout_function": path, "hf_checkpoint": "m"} | arguments)
        monkeypatch.setenv("ROLLTAPE_DIR", str(tmp_path / "tape"))
        monkeypatch.setenv("ROLLTAPE_MODE", mode)

        def call(rollout_id, evaluation=False):
            if package == "slime":
                path = slime_functions.generate_rollout
                return base.call_rollout_fn(path, args, rollout_id, None, evaluation=evaluation)
            compatibility = importlib.import_module("miles.rollout.inference_rollout.compatibility")
            given = base.RolloutFnConstructorInput(args=args, data_source=None)
            kind = base.RolloutFnEvalInput if evaluation else base.RolloutFnTrainInput
            ours = miles_functions.RolloutFn(given)
            return compatibility.call_rollout_function(ours, kind(rollout_id=rollout_id))

        return call

    return SimpleNamespace(start=start, calls=calls, Sample=types.Sample, tape=tmp_path / "tape")


def test_a_replay_returns_what_was_recorded_nested_as_it_was(framework) -> None:
    live = framework.start("record")
    recorded = [live(0), live(1), live(0, True)]
    assert framework.calls == [(0, False), (1, False), (0, True)]
    play = framework.start("replay")
    replayed = [play(0), play(1), play(0, True)]
    assert len(framework.calls) == 3
    assert replayed == recorded
    assert [type(found) for found in replayed] == [type(found) for found in recorded]
    odd = replayed[0].samples[0][1]
    assert type(odd) is framework.Sample
    assert odd.noted_by_hand == "only here"
    assert odd.status is framework.Sample.Status.COMPLETED
    assert [len(group) for group in replayed[0].samples] == [2, 1, 2]
    assert [len(group) for group in replayed[0].samples[2]] == [2, 1]


def test_samples_are_columns_that_any_tool_can_read(framework) -> None:
    framework.start("record")(0)
    with rolltape.Tape(framework.tape, mode="replay") as tape:
        recording = tape.recording(0)
        assert recording.samples == 6
        assert recording.columns["tokens"] == "int64 [*]"
        assert recording.columns["rollout_log_probs"] == "float64 [*]"
        assert [len(row) for row in recording.batch(["tokens"]).columns["tokens"]] == [3, 1, 2, 4, 5, 1]


def test_evaluations_of_one_rollout_are_told_apart(framework) -> None:
    """slime evaluates before and after the first rollout, under the same number."""
    live = framework.start("record")
    before, _, after = live(0, True), live(0), live(0, True)
    play = framework.start("replay")
    found = [play(0, True), play(0), play(0, True)]
    assert before.metrics != after.metrics
    assert [found[0], found[2]] == [before, after]


def test_a_missing_step_is_an_error_and_nothing_else(framework) -> None:
    framework.start("record")(0)
    with pytest.raises(rolltape.StepMissingError, match="step 7"):
        framework.start("replay")(7)
    assert framework.calls == [(0, False)]


def test_a_recorded_step_is_not_overwritten(framework) -> None:
    framework.start("record")(0)
    Rollouts._open = None  # another process
    with pytest.raises(rolltape.StepExistsError):
        framework.start("record")(0)


def test_with_engines_off_nothing_is_generated(framework) -> None:
    recorded = framework.start("record")(0)
    off = framework.start("auto", debug_train_only=True)
    assert off(0) == recorded
    with pytest.raises(rolltape.ConfigError, match="rollout 1 must be generated, but no engine runs"):
        off(1)
    assert framework.calls == [(0, False)]


def test_another_model_is_refused(framework) -> None:
    framework.start("record")(0)
    with pytest.raises(rolltape.MismatchError, match="model"):
        framework.start("replay", hf_checkpoint="another")(0)


def test_it_does_not_record_itself(framework) -> None:
    itself = framework.start(
        "record", rolltape_rollout_function="rolltape.integrations.slime.generate_rollout"
    )
    with pytest.raises(rolltape.ConfigError, match="not a rollout function that can be recorded"):
        itself(0)


class Source:
    """slime's data source: groups of samples, in the order of the given prompts."""

    def __init__(self, sample: Any, numbers: list[int], n: int) -> None:
        self._sample, self._numbers, self._n = sample, iter(numbers), n
        self._index = self._group = 0

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        groups = []
        for number in [next(self._numbers) for _ in range(num_samples)]:
            group = []
            for _ in range(self._n):
                group.append(self._sample(index=self._index, group_index=self._group, prompt=f"p{number}"))
                self._index += 1
            self._group += 1
            groups.append(group)
        return groups


@pytest.fixture
def by_prompt(framework, package, monkeypatch):
    """Starts a run of slime that is asked by its prompts; what its own function made is noted."""
    theirs, base = sys.modules["theirs"], importlib.import_module(f"{package}.rollout.base_types")
    made: list[tuple[str, int]] = []

    def generate(args, rollout_id, data_source, evaluation=False):
        groups = data_source.get_samples(args.over_sampling_batch_size)
        assert len(groups) == args.rollout_batch_size
        for group in groups:
            assert len(group) == args.n_samples_per_prompt
            for one in group:
                made.append((one.prompt, one.index))
                one.response, one.tokens = (
                    f"answer {len(made)} to {one.prompt}",
                    [len(made)] * (len(made) % 3),
                )
                one.reward, one.status = float(len(made)), framework.Sample.Status.COMPLETED
        return base.RolloutFnTrainOutput(samples=groups[::-1], metrics={"made": len(made)})

    theirs.generate = generate

    def start(mode, numbers, size, n, **arguments):
        monkeypatch.setenv("ROLLTAPE_DIR", str(framework.tape))
        for name, value in {"MODE": mode, "BY": "prompt", "VERSION": "any"}.items():
            monkeypatch.setenv(f"ROLLTAPE_{name}", value)
        args = Namespace(
            rolltape_rollout_function="theirs.generate", hf_checkpoint="m", rollout_batch_size=size,
            over_sampling_batch_size=size, n_samples_per_prompt=n, **arguments,
        )  # fmt: skip
        source = Source(framework.Sample, numbers, n)
        return lambda rollout_id: slime_functions.generate_rollout(args, rollout_id, source)

    return SimpleNamespace(start=start, made=made)


def test_asked_by_prompts_it_generates_what_is_missing_only(by_prompt, framework, package) -> None:
    if package == "miles":  # its class is not given the data source
        by_prompt.start("auto", [0], 1, 1)
        with pytest.raises(rolltape.ConfigError, match="MILES_USE_LEGACY_ROLLOUT_V1"):
            framework.start("auto")(0)
        return
    run = by_prompt.start("record", [0, 1, 2, 3], 2, 2, prompt_data="a.jsonl", rollout_seed=1)
    answers: dict[str, list[Any]] = {}
    for step in (0, 1):
        for group in run(step).samples:
            answers[group[0].prompt] = [(one.response, one.tokens, one.reward, one.status) for one in group]
    assert len(by_prompt.made) == 8
    other = {"prompt_data": "b.jsonl", "rollout_seed": 2}
    run = by_prompt.start("auto", [3, 0, 7, 7, 2, 1], 3, 3, **other)
    found = run(0)
    new = by_prompt.made[8:]
    assert sorted(prompt for prompt, _ in new) == ["p0", "p3", "p7", "p7", "p7"]
    assert [[one.prompt for one in group] for group in found.samples] == [["p3"] * 3, ["p0"] * 3, ["p7"] * 3]
    assert [one.index for group in found.samples for one in group] == list(range(9))
    for group in found.samples[:2]:
        first = [(one.response, one.tokens, one.reward, one.status) for one in group[:2]]
        assert first == answers[group[0].prompt]
        assert group[2].response not in [response for response, *_ in first]
    again = run(1)
    assert len(by_prompt.made) == 8 + 5 + 2, "one more of p2 and of p1"
    assert [one.response for one in again.samples[0]] == [one.response for one in found.samples[2]]
    run = by_prompt.start("replay", [1, 7, 0, 3], 4, 3, **other)
    assert len(run(0).samples) == 4
    assert len(by_prompt.made) == 15
    run = by_prompt.start("auto", [9], 1, 1, debug_train_only=True)
    with pytest.raises(rolltape.ConfigError, match="1 samples must be generated, but no engine runs"):
        run(0)
    run = by_prompt.start("auto", [9], 1, 1, partial_rollout=True)
    with pytest.raises(rolltape.ConfigError, match="partial_rollout is set"):
        run(0)


@pytest.mark.parametrize("package", ["slime"], indirect=True)
def test_a_killed_rollout_goes_on_with_the_samples_that_were_done(framework, monkeypatch) -> None:
    """Each is generated by itself, in the loop of another thread, as slime does."""
    theirs, made = sys.modules["theirs"], []
    status = framework.Sample.Status

    async def one(args, sample, sampling_params):
        if len(made) == args.stop:
            raise KeyboardInterrupt
        made.append(sample.index)
        sample.tokens, sample.response = [sample.index] * 3, f"{sample.prompt}!"
        sample.rollout_log_probs = [-0.1 * sample.index] * 3
        sample.status = status.PENDING if sample.index == 1 and args.stop else status.COMPLETED
        return sample

    async def rollout(args):
        def sample(g, i):
            return framework.Sample(index=2 * g + i, group_index=g, prompt=f"p{g}")

        groups = []
        for g in range(3):
            groups.append([])
            for i in range(2):
                found = await slime_functions.generate(args, sample(g, i), {"temperature": 1.0})
                groups[-1].append(found)
        return groups

    def whole(args, rollout_id, data_source, evaluation=False):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, rollout(args)).result()

    theirs.generate, theirs.one = whole, one
    with pytest.raises(KeyboardInterrupt):
        framework.start("auto", stop=4, rolltape_generate_function="theirs.one")(0)
    assert made == [0, 1, 2, 3]
    Rollouts._open.tape.close()
    Rollouts._open = None
    made.clear()
    found = framework.start("auto", stop=None, rolltape_generate_function="theirs.one")(0)
    assert made == [1, 4, 5], "what was not done, and what had not begun"
    assert [[sample.tokens for sample in group] for group in found] == [
        [[2 * g + i] * 3 for i in range(2)] for g in range(3)
    ]
    assert all(sample.status is status.COMPLETED for group in found for sample in group)
    assert Rollouts._open.tape.summary().resumed == ((0, 3, 6),)
