"""The contract of integrations (tests/contract.py) for verl: RolloutSkip by hand, V0 and V1.

tests/verl/test_releases.py keeps the same contract for other releases of verl, in processes of their own.
"""

import asyncio

import pytest
from verl.utils.skip import SkipManager

from rolltape.integrations.verl import RolloutSkip, install
from tests.contract import Contract, Failed, Ran
from tests.verl.batches import output_for, prompts_for
from tests.verl.skips import v2
from tests.verl.v1 import Generator, consume, make_trainer


class Engine:
    """Generates at random, and counts; with `fails_at` it goes away in that step."""

    def __init__(self, fails_at=None):
        self.fails_at, self.step, self.generated = fails_at, None, 0

    def generate_sequences(self, prompts):
        if self.step == self.fails_at and self.step is not None:
            raise Failed
        self.generated += not prompts.meta_info.get("validate", False)
        return output_for(prompts, seed=id(object()) % 2**31 + self.generated)


def values(output):
    """A DataProto as values that `==` compares to the last bit."""
    tensors = {name: (str(value.dtype), value.float().tolist()) for name, value in output.batch.items()}
    return tensors, {name: column.tolist() for name, column in output.non_tensor_batch.items()}


class OnTape(Contract):
    first = 1

    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch, trainer_config):
        self.monkeypatch, self.trainer_config = monkeypatch, trainer_config
        yield
        install.stop()

    def begin(self, tape, mode):
        self.monkeypatch.setenv("ROLLTAPE_DIR", str(tape))
        self.monkeypatch.setenv("ROLLTAPE_MODE", mode)

    def batches(self, step, other_prompts, calls, val):
        """What the trainer asks for in a step: its prompts, and whether they are for training."""
        for call in range(calls):
            yield prompts_for(step * 10 + call + 100 * other_prompts), True
        if val:
            yield prompts_for(step, validate=True), False


class TestRolloutSkip(OnTape):
    """As a trainer of your own uses it."""

    def run(self, tape, mode, steps, *, other_prompts=False, fails_at=None, calls=1, val=False):
        self.begin(tape, mode)
        engine, got = Engine(fails_at), []
        skip = RolloutSkip(v2(tape), engine)
        skip.wrap_generate_sequences()
        try:
            for step in steps:
                engine.step = skip._step = step
                made = [
                    (values(engine.generate_sequences(prompts)), train)
                    for prompts, train in self.batches(step, other_prompts, calls, val)
                ]
                got.append([one for one, train in made if train])
        finally:
            skip.close()
        return Ran(got, engine.generated)


class TestV0(OnTape):
    """A function decorated as verl's agent loops are."""

    def run(self, tape, mode, steps, *, other_prompts=False, fails_at=None, calls=1, val=False):
        self.begin(tape, mode)
        engine, got = Engine(fails_at), []

        @SkipManager.annotate(role="rollout")
        async def generate_sequences(prompts):
            return engine.generate_sequences(prompts)

        SkipManager.init(self.trainer_config())
        try:
            for step in steps:
                engine.step = step
                SkipManager.set_step(step)
                made = [
                    (values(asyncio.run(generate_sequences(prompts))), train)
                    for prompts, train in self.batches(step, other_prompts, calls, val)
                ]
                got.append([one for one, train in made if train])
        finally:
            install.stop()
        return Ran(got, engine.generated)


@pytest.mark.usefixtures("empty_queue")
class TestV1(OnTape):
    """Through TransferQueue; a step is sampled once, and validation is in tests/verl/test_v1_trainers.py."""

    can = frozenset({"prompts", "off"})

    def run(self, tape, mode, steps, *, other_prompts=False, fails_at=None, **others):
        self.begin(tape, mode)
        generator, got = Generator(), []
        per_step, live = 2, generator.generate_sequences
        config = self.trainer_config()
        first = (steps[0] - self.first) * per_step + 100 * other_prompts
        trainer = make_trainer(config, generator, first_prompt=first)
        SkipManager.init(config)

        def generate(batch):
            if trainer.global_steps == fails_at:
                raise Failed
            return live(batch)

        generator.generate_sequences = generate
        try:
            got += [
                [list(part) if isinstance(part, tuple) else part for part in consume(trainer, step)]
                for step in steps
            ]
        finally:
            install.stop()
        return Ran(got, generator.prompts // per_step)
