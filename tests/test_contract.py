"""The contract of integrations (tests/contract.py) for your own trainer, ROLL, slime, miles and engines."""

import asyncio
import importlib
import logging
import random
import sys
from argparse import Namespace
from types import ModuleType

import pytest

import rolltape
from rolltape.integrations import miles, roll, slime
from rolltape.integrations.roll.dataproto import to_parts
from rolltape.integrations.slime.rollout_function import Rollouts
from tests import roll_standin
from tests.contract import Contract, Failed, Ran
from tests.test_slime_functions import standin


class TestYourOwnTrainer(Contract):
    """The public API, as docs/your-own-trainer.md has it."""

    def run(self, tape, mode, steps, *, other_prompts=False, fails_at=None, calls=1, val=False):
        got, live = [], []
        with rolltape.Tape(tape, mode=mode) as opened:

            @opened.stage("rollout", inputs=["prompts"])
            def generate(prompts, step):
                if step == fails_at:
                    raise Failed
                live.append(step)
                return {"responses": [random.random() for _ in prompts]}

            for step in steps:
                with opened.step(step):
                    prompts = [f"{step}{' changed' * other_prompts}"] * 2
                    got.append([generate(prompts, step) for _ in range(calls)])
                if val:
                    with opened.step(step, split="val"):
                        generate(["validation"], -1)
        return Ran(got, sum(step >= 0 for step in live))


def fail(*args):
    raise Failed


class TestRoll(Contract):
    """Its schedulers draw their own prompts, once per step; without `rollout_mock` they are not on a tape."""

    can = frozenset({"val", "off"})

    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch, caplog):
        monkeypatch.delenv("RAY_RUNTIME_ENV_HOOK", raising=False)
        caplog.set_level(logging.INFO)
        with roll_standin.importable():
            roll.install()
            yield

    def run(self, tape, mode, steps, *, fails_at=None, val=False, **others):
        word = {"record": "dump", "replay": "mock", "off": "dump"}[mode]
        config = roll_standin.config(tape, word, enable=mode != "off")
        scheduler = roll_standin.rollout_scheduler(config)
        validation = roll_standin.rollout_scheduler(config, "val") if val else None
        module, got = importlib.import_module(f"{roll_standin.SCHEDULER}.rollout_scheduler"), []
        for step in steps:
            if step == fails_at:
                module.drawn = fail
            batch = asyncio.run(scheduler.get_batch(roll_standin.request(step), 8))
            got.append({name: column.tolist() for name, column in to_parts(batch)["batch"].items()})
            if validation is not None:
                asyncio.run(validation.get_batch(roll_standin.request(step), 8))
        return Ran(got, scheduler.live)


class TestSlime(Contract):
    """Its function is given a data source, not prompts, and is called once per step."""

    can = frozenset({"val", "off"})
    package = "slime"

    @pytest.fixture(autouse=True)
    def framework(self, monkeypatch):
        for name, module in standin(self.package).items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setitem(sys.modules, "theirs", ModuleType("theirs"))
        self.monkeypatch = monkeypatch
        yield
        self.close()

    def close(self):
        if Rollouts._open is not None:
            Rollouts._open.tape.close()
            Rollouts._open = None

    def run(self, tape, mode, steps, *, fails_at=None, val=False, **others):
        base = importlib.import_module(f"{self.package}.rollout.base_types")
        sample = importlib.import_module(f"{self.package}.utils.types").Sample
        live = []

        def generate(args, rollout_id, data_source, evaluation=False):
            if rollout_id == fails_at:
                raise Failed
            if evaluation:
                return base.RolloutFnEvalOutput(data={"aime": {"rewards": [random.random()], "samples": []}})
            live.append(rollout_id)
            return base.RolloutFnTrainOutput(
                samples=[[sample(index=0, reward=random.random(), tokens=[1, 2])]]
            )

        class Generate:
            def __init__(self, given):
                self.given = given

            def __call__(self, given):
                return generate(None, given.rollout_id, None, given.evaluation)

        sys.modules["theirs"].generate, sys.modules["theirs"].Generate = generate, Generate
        self.monkeypatch.setenv("ROLLTAPE_DIR", str(tape))
        self.monkeypatch.setenv("ROLLTAPE_MODE", mode)
        try:
            got = []
            call = self.function()
            for step in steps:
                got.append(call(step, False).samples)
                if val:
                    call(step, True)
            return Ran(got, len(live))
        finally:
            self.close()

    def function(self):
        args = Namespace(rolltape_rollout_function="theirs.generate", hf_checkpoint="m")
        return lambda step, evaluation: slime.generate_rollout(args, step, None, evaluation=evaluation)


class TestMiles(TestSlime):
    """As slime, with a class in place of a function."""

    package = "miles"

    def function(self):
        base = importlib.import_module("miles.rollout.base_types")
        args = Namespace(rolltape_rollout_function="theirs.Generate", hf_checkpoint="m")
        function = miles.RolloutFn(base.RolloutFnConstructorInput(args=args, data_source=None))

        def call(step, evaluation):
            kind = base.RolloutFnEvalInput if evaluation else base.RolloutFnTrainInput
            return function(kind(rollout_id=step))

        return call
