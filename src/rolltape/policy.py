"""What happens at a step: a pure decision based on the step, what is recorded, and the options.

Knows nothing of files, stages or engines. ``decide`` says what to do and why; the tape does it.

| mode    | step recorded                                  | step missing                 |
|---------|------------------------------------------------|------------------------------|
| off     | live                                           | live                         |
| record  | error, unless ``overwrite`` is keep or rewrite | live, then save              |
| rewrite | live, then replace atomically                  | live, then save              |
| replay  | return the recording                           | ``on_miss``, default error   |
| auto    | return the recording                           | ``on_miss``, default record  |

Outside ``steps`` the tape does not act, even if a step is recorded: ``beyond`` says what happens instead. It
takes the values of ``on_miss``: ``live`` neither plays nor saves, ``error`` stops the run, ``record`` acts
like mode ``record`` (in mode ``rewrite``: ``rewrite``), and the others play a recorded step.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from rolltape.choices import NamedOption
from rolltape.errors import ConfigError, RolltapeError, StepExistsError, StepMissingError
from rolltape.steps import ALL_STEPS, StepSelector, as_step

__all__ = ["Action", "Decision", "Mode", "OnMiss", "Overwrite", "Policy", "VersionRule", "decide"]

_OLD = re.compile(r"\s*<=\s*([0-9]{1,18})\s*(old)?\s*")


class Mode(NamedOption):
    """What the tape does. ROLL says ``dump`` for record and ``mock`` for replay, verl ``cache`` for auto."""

    OFF = "off"
    RECORD = "record"
    REWRITE = "rewrite"
    REPLAY = "replay"
    AUTO = "auto"

    @classmethod
    def aliases(cls) -> Mapping[str, str]:
        return {"dump": "record", "mock": "replay", "cache": "auto"}


class OnMiss(NamedOption):
    """What happens at a step that is not on the tape (``on_miss``) or not one of ``steps`` (``beyond``)."""

    ERROR = "error"
    LIVE = "live"
    RECORD = "record"
    CYCLE = "cycle"
    LAST = "last"
    NEAREST = "nearest"


class Overwrite(NamedOption):
    """What mode ``record`` does at a step that is on the tape already."""

    ERROR = "error"
    KEEP = "keep"
    REWRITE = "rewrite"


class Action(NamedOption):
    """What is done at one step."""

    LIVE = "live"
    RECORD = "record"
    REWRITE = "rewrite"
    REPLAY = "replay"
    SUBSTITUTE = "substitute"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Policy:
    """The options that decide what happens at a step."""

    mode: Mode
    """What the tape does."""

    on_miss: OnMiss | None = None
    """What happens at a step that is not on the tape; ``None``: error in replay, record in auto."""

    steps: StepSelector = ALL_STEPS
    """Where the tape acts."""

    beyond: OnMiss = OnMiss.LIVE
    """What happens at the other steps."""

    overwrite: Overwrite = Overwrite.ERROR
    """What mode record does at a step that is on the tape already."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done at one step, and why."""

    action: Action
    """What is done."""

    step: int
    """The step it is done at."""

    reason: str
    """Why, in one sentence."""

    source: int | None = None
    """The recorded step that is played; ``None`` if none is."""

    error: type[RolltapeError] | None = None
    """The error to raise, with ``reason`` and ``hint``; set exactly when the action is ``error``."""

    hint: str | None = None
    """How to avoid the error."""

    missed: bool = False
    """Whether the step was looked for on the tape and not found, so that ``on_miss`` applied."""

    @property
    def calls_live(self) -> bool:
        """Whether the live function runs."""
        return self.action in (Action.LIVE, Action.RECORD, Action.REWRITE)

    @property
    def saves(self) -> bool:
        """Whether its result goes on the tape."""
        return self.action in (Action.RECORD, Action.REWRITE)

    @property
    def plays(self) -> bool:
        """Whether a recording is returned."""
        return self.action in (Action.REPLAY, Action.SUBSTITUTE)


def decide(step: int, recorded: Collection[int], policy: Policy, *, replays: bool = True) -> Decision:
    """Decide what happens at ``step``, given the steps that are ``recorded``.

    With ``replays=False``, a stage runs live wherever another would be replayed or missing. ``recorded``
    is asked once whether it contains the step, and is searched further only to pick a substitute. A sequence
    must be in ascending order: it is searched by bisection.

    >>> policy = Policy(Mode.AUTO, steps=StepSelector.parse("1-3"), beyond=OnMiss.CYCLE)
    >>> [str(decide(step, {1, 2}, policy).action) for step in (1, 2, 3, 4)]
    ['replay', 'replay', 'record', 'substitute']
    >>> decide(4, {1, 2}, policy).reason
    'step 4 is outside steps 1-3, so `cycle` plays recorded step 2'
    """
    step = as_step(step)
    if policy.mode is Mode.OFF:
        return Decision(Action.LIVE, step, "the tape is off")
    if step not in policy.steps:
        why = f"step {step} is outside steps {_abridged(policy.steps)}"
        if policy.beyond is OnMiss.RECORD:
            return _save(step, recorded, policy, why)
        return _without_recording(step, recorded, policy, policy.beyond, why)
    if policy.mode in (Mode.RECORD, Mode.REWRITE):
        return _save(step, recorded, policy, f"mode is {policy.mode}")
    if not replays and (policy.mode is Mode.REPLAY or step in recorded):
        return Decision(Action.LIVE, step, "this stage is never replayed")
    if step in recorded:
        return Decision(Action.REPLAY, step, f"step {step} is on the tape", source=step)
    by_default = OnMiss.ERROR if policy.mode is Mode.REPLAY else OnMiss.RECORD
    why = f"step {step} is not on the tape"
    return replace(_without_recording(step, recorded, policy, policy.on_miss or by_default, why), missed=True)


def _save(step: int, recorded: Collection[int], policy: Policy, why: str) -> Decision:
    """Run live and save, unless a recording that already exists must stay."""
    if step not in recorded:
        return Decision(Action.RECORD, step, f"{why}, and step {step} is not on the tape yet")
    if policy.mode is Mode.REWRITE or policy.overwrite is Overwrite.REWRITE:
        return Decision(Action.REWRITE, step, f"{why}, and the recording of step {step} will be replaced")
    if policy.overwrite is Overwrite.KEEP:
        return Decision(
            Action.LIVE, step, f"{why}, but step {step} is already on the tape and is kept as it is"
        )
    return Decision(
        Action.ERROR,
        step,
        f"{why}, but step {step} is already on the tape",
        error=StepExistsError,
        hint="set overwrite=keep or overwrite=rewrite, use mode=auto to replay it, or record to another dir",
    )


def _without_recording(
    step: int, recorded: Collection[int], policy: Policy, word: OnMiss, why: str
) -> Decision:
    """Do what ``on_miss`` or ``beyond`` says."""
    if word is OnMiss.LIVE:
        return Decision(Action.LIVE, step, f"{why}, so it runs live and is not saved")
    if word is OnMiss.RECORD:
        return Decision(Action.RECORD, step, f"{why}, so it runs live and is saved")
    if word is OnMiss.ERROR:
        option = "on_miss" if step in policy.steps else "beyond"
        return Decision(
            Action.ERROR,
            step,
            f"{why}, and `{option}` is error",
            error=StepMissingError,
            hint=f"record the step, or set {option} to live, record, cycle, last or nearest",
        )
    return _substitute(step, recorded, policy, word, why)


def _substitute(step: int, recorded: Collection[int], policy: Policy, word: OnMiss, why: str) -> Decision:
    on_tape = recorded if isinstance(recorded, Sequence) else sorted(recorded)
    pool = _pool(on_tape, policy.steps)
    if not pool.size:
        return Decision(Action.RECORD, step, f"{why}, and the tape is empty, so it runs live and is saved")
    if pool.holds(step):
        return Decision(
            Action.REPLAY, step, f"{why}, but so is every recorded step, and this is one of them", source=step
        )
    source = pool.pick(step, word)
    return Decision(
        Action.SUBSTITUTE, step, f"{why}, so `{word}` plays recorded step {source}", source=source
    )


@dataclass(frozen=True, slots=True)
class _Pool:
    """The recorded steps that may be played in place of others: part of a sorted sequence, not copied."""

    steps: Sequence[int]
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def holds(self, step: int) -> bool:
        at = bisect_left(self.steps, step, self.start, self.stop)
        return at < self.stop and self.steps[at] == step

    def pick(self, step: int, word: OnMiss) -> int:
        """The step to play in place of one that is not in the pool. The pool must not be empty."""
        if word is OnMiss.LAST:
            return self.steps[self.stop - 1]
        if word is OnMiss.CYCLE:
            # Counted from the first recorded step, so that 1..n are followed by 1 again. It depends on the
            # step and the tape alone, not on how often it was asked: a resumed run gets the same answers.
            return self.steps[self.start + (step - self.steps[self.start]) % self.size]
        return self.steps[max(bisect_left(self.steps, step, self.start, self.stop) - 1, self.start)]


def _pool(on_tape: Sequence[int], steps: StepSelector) -> _Pool:
    """The recorded steps inside ``steps``; all recorded steps if none is inside."""
    # Where the tape acts comes first: in verl's `repeat`, a step recorded past the end is not in the round.
    cuts = [(bisect_left(on_tape, run.start), bisect_left(on_tape, run.stop)) for run in steps.runs]
    cuts = [(start, stop) for start, stop in cuts if start < stop]
    if len(cuts) == 1 and not steps.strided:
        return _Pool(on_tape, *cuts[0])
    if steps.strided:
        inside = [step for step in on_tape if step in steps]
    else:
        inside = [step for start, stop in cuts for step in on_tape[start:stop]]
    return _Pool(inside, 0, len(inside)) if inside else _Pool(on_tape, 0, len(on_tape))


def _abridged(steps: StepSelector) -> str:
    text = str(steps) or "(none)"
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True, slots=True)
class VersionRule:
    """Which versions of the policy may answer."""

    text: str
    oldest: int | None = None
    """How many versions old a sample may be, where that is what counts."""

    @classmethod
    def parse(cls, text: str) -> VersionRule:
        """``same``, ``any``, ``nearest`` or ``<= 2 old``.

        >>> VersionRule.parse("<= 2 old").oldest
        2
        """
        if text in ("same", "any", "nearest"):
            return cls(text)
        match = _OLD.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigError(
                f"version {text!r} is none of same, any, nearest, `<= 2 old`",
                hint="leave it out: then only samples of the same version of the policy answer",
            )
        return cls(text, int(match[1]))

    def allows(self, policy: int, now: int) -> bool:
        """Whether a sample of this version may answer a policy of the version ``now``."""
        if self.oldest is not None:
            return 0 <= now - policy <= self.oldest
        return self.text != "same" or policy == now

    def sorts(self, policy: int, now: int) -> tuple[int, int]:
        """Sorts samples by how well they answer; those that answer alike stay in recorded order."""
        away = abs(policy - now) if self.text == "nearest" else 0
        return away, policy if away else 0
