"""What every integration promises, as tests: a new framework is a subclass with one method, `run`.

    class TestMyFramework(Contract):
        def run(self, tape, mode, steps, **how): ...

Real parts of the framework do the rest. What a framework cannot do is left out of `can`, with the reason.
"""

from dataclasses import dataclass

import pytest

import rolltape
from rolltape import MismatchError, StepMissingError


@dataclass(frozen=True)
class Ran:
    """What a run came to."""

    got: list
    """What the trainer was given at each step, as values that `==` compares to the last bit."""
    generated: int
    """How often the framework itself generated for training."""


class Failed(Exception):
    """The engine went away in the middle of a step."""


class Contract:
    can = frozenset({"prompts", "calls", "val", "off"})
    """`prompts`: it is given prompts, which are compared. `calls`: it may generate several times per step.
    `val`: it generates for validation too. `off`: it can be run without a tape."""
    first = 0
    """The number of its first step."""

    def run(self, tape, mode, steps, *, other_prompts=False, fails_at=None, calls=1, val=False):
        """Train these steps; what generates is random, and raises `Failed` at the step `fails_at`."""
        raise NotImplementedError

    def steps(self, *numbers):
        return [self.first + number for number in numbers]

    @pytest.fixture
    def tape(self, tmp_path):
        return tmp_path / "contract"

    def test_a_replay_is_the_run_and_generates_nothing(self, tape):
        recorded = self.run(tape, "record", self.steps(0, 1, 2))
        assert recorded.generated == 3
        assert len(recorded.got) == 3
        assert recorded.got[0] != recorded.got[1], "what generates here must be random"
        assert self.run(tape, "replay", self.steps(0, 1, 2)) == Ran(recorded.got, 0)

    def test_a_run_is_resumed_in_the_middle(self, tape):
        recorded = self.run(tape, "record", self.steps(0, 1, 2))
        assert self.run(tape, "replay", self.steps(1, 2)) == Ran(recorded.got[1:], 0)

    def test_a_missing_step_is_an_error(self, tape):
        self.run(tape, "record", self.steps(0))
        with pytest.raises(StepMissingError):
            self.run(tape, "replay", self.steps(0, 1))

    def test_an_interrupted_step_is_absent_and_the_others_are_whole(self, tape):
        with pytest.raises(Failed):
            self.run(tape, "record", self.steps(0, 1), fails_at=self.first + 1)
        assert self.run(tape, "replay", self.steps(0)).generated == 0
        with pytest.raises(StepMissingError):
            self.run(tape, "replay", self.steps(0, 1))

    def test_other_prompts_are_refused(self, tape):
        self.needs("prompts")
        self.run(tape, "record", self.steps(0))
        with pytest.raises(MismatchError):
            self.run(tape, "replay", self.steps(0), other_prompts=True)

    def test_several_calls_of_a_step(self, tape):
        self.needs("calls")
        recorded = self.run(tape, "record", self.steps(0, 1), calls=2)
        assert recorded.generated == 4
        assert self.run(tape, "replay", self.steps(0, 1), calls=2) == Ran(recorded.got, 0)
        with rolltape.Tape(tape, mode="replay") as found:
            at = [(one.key.step, one.key.call) for one in found.recordings(stage="rollout")]
        assert at == [(step, call) for step in self.steps(0, 1) for call in (0, 1)]

    def test_validation_is_apart(self, tape):
        self.needs("val")
        recorded = self.run(tape, "record", self.steps(0, 1), val=True)
        assert self.run(tape, "replay", self.steps(0, 1)) == Ran(recorded.got, 0)
        with rolltape.Tape(tape, mode="replay") as found:
            train = [one.key.step for one in found.recordings(stage="rollout", split="train")]
        assert train == self.steps(0, 1)

    def test_off_is_untouched(self, tape):
        self.needs("off")
        assert self.run(tape, "off", self.steps(0, 1)).generated == 2
        assert not tape.exists()

    def needs(self, what):
        if what not in self.can:
            pytest.skip(f"{type(self).__name__} has no {what}: {self.__doc__}")
