"""Which recorded samples answer a request by its content: whoever asked for them, at whatever step.

With ``by="prompt"`` a call counts as the samples that it asks for: ``n`` of each of its prompts. A sample is
found by its prompt and by everything else that the body says and that changes what is generated, ``n``
excepted. Within a step each is handed out once; a later step gets the same ones again.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rolltape.index.answer_plan import Rest, allowed_samples, in_recorded_order, plan_call
from rolltape.policy import VersionRule
from rolltape.serving.asked import Asked, BadBody, Naming, canonical, counted, parse_body
from rolltape.serving.dialects import Dialect, Parts, find, take_apart
from rolltape.serving.lookup import Lookup, Slot, target_of

STEPS = 64
"""Of how many steps it is known what was handed out."""

_Key = tuple[bytes, "int | None"]
"""Stands for what a sample is asked: a digest, and the seed, which counts on within a prompt."""


@dataclass(slots=True, eq=False)
class Sample:
    """One recorded sample: a choice of a call, or all of it."""

    slot: Slot
    key: _Key
    choice: int
    """Which of its call it is."""
    of: int
    """How many the call has."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The samples that a request asks for, in the order of its answer."""

    parts: Parts | None
    """None: it can only be answered as a whole."""
    contents: tuple[bytes, ...]
    """All that the samples of each prompt are asked."""
    keys: tuple[_Key, ...]
    """One for each sample."""

    @property
    def each(self) -> int:
        """How many samples a prompt gets."""
        return 1 if self.parts is None else self.parts.n


class Policy(NamedTuple):
    """Which policy asks."""

    step: int
    knows_step: bool
    """Whether anybody said, or an update of the weights, which step it is."""
    weights: str
    declared: bool
    """Whether somebody said what the weights are called; else the step stands for them."""

    def version(self, slot: Slot) -> int | None:
        """The number of the policy of a recording; None where it has none."""
        return _number(slot.weights) if self.declared else slot.step

    @property
    def own(self) -> int | None:
        return _number(self.weights) if self.declared else self.step


class Ranked(NamedTuple):
    """A sample that may answer, and whose it is."""

    sample: Sample
    policy: int
    order: int
    """Where it stands among those that were recorded."""


class MissingCall(NamedTuple):
    """What is asked of the engine."""

    prompts: tuple[int, ...]
    """Which of the prompts, by their place in the request; one may come several times."""
    n: int
    seed: int | None
    places: tuple[int, ...]
    """Where each sample belongs in the answer."""


class ContentIndex:
    """The samples of a tape, and of this run, by what was asked."""

    def __init__(self, lookup: Lookup, rule: VersionRule, draw: int | None, naming: Naming) -> None:
        self._lookup, self._rule, self._draw, self._naming = lookup, rule, draw, naming
        self._samples: dict[_Key, list[Sample]] = {}
        self._of: dict[Slot, list[Sample]] = {}
        self._handed: OrderedDict[int, set[Sample]] = OrderedDict()
        for slot in lookup.slots:
            if slot.is_finished:
                self.add(slot)

    def add(self, slot: Slot) -> None:
        """A call may answer from now on."""
        wish = self._recorded_wish(slot)
        if wish is None or (wish.parts is not None and slot.status != 200):
            return
        found = [Sample(slot, key, at, len(wish.keys)) for at, key in enumerate(wish.keys)]
        self._of[slot] = found
        for sample in found:
            self._samples.setdefault(sample.key, []).append(sample)

    def drop(self, slot: Slot) -> None:
        """A call turned out not to have what it should: it answers nothing from now on."""
        for sample in self._of.pop(slot, ()):
            self._samples[sample.key].remove(sample)

    def count(self, slot: Slot) -> int:
        """How many samples a call has."""
        return len(self._of.get(slot, ()))

    def wish(self, asked: Asked) -> Wish:
        """What a request asks for."""
        target = target_of(asked.method, asked.path, asked.query)
        return _wish(asked.dialect, target, parse_body(asked.body) if asked.body else None, self._naming)

    def is_of(self, sample: Sample, content: bytes) -> bool:
        """Whether its recording says of a sample that this was asked; reads it."""
        wish = self._recorded_wish(sample.slot)
        return (
            wish is not None
            and len(wish.keys) == sample.of
            and wish.contents[sample.choice // wish.each] == content
        )

    def _recorded_wish(self, slot: Slot) -> Wish | None:
        method, _, path = slot.target.partition(" ")
        try:
            body = parse_body(self._lookup.request_body(slot))
        except BadBody:
            return None
        dialect = find(method, path.partition("?")[0])
        return _wish(dialect.for_body(body) if dialect else None, slot.target, body, self._naming)

    # -- handing out -----------------------------------------------------------------------------------

    def choose(self, wish: Wish, policy: Policy) -> list[Sample | None]:
        """The samples that answer, each handed out in this step from now on; None where one is missing."""
        handed = self._handed_at(policy.step)
        found: list[Sample | None] = [None] * len(wish.keys)
        places: dict[_Key, list[int]] = {}
        for place, key in enumerate(wish.keys):
            places.setdefault(key, []).append(place)
        for key, wanted in places.items():
            free = [one for one in self._allowed(key, policy) if one.sample not in handed]
            taken = in_recorded_order(free[: len(wanted)], self._ranking, policy.own or 0)
            for place, one in zip(wanted, taken, strict=False):
                found[place] = one.sample
        handed.update(one for one in found if one is not None)
        return found

    def give_back(self, step: int, samples: Sequence[Sample | None]) -> None:
        """A request has failed: what it was to have may be handed out again."""
        self._handed_at(step).difference_update(samples)

    def take(self, step: int, slot: Slot) -> None:
        """All samples of a call are handed out."""
        self._handed_at(step).update(self._of.get(slot, ()))

    def is_free(self, step: int, slot: Slot) -> bool:
        """Whether no sample of a call was handed out in a step."""
        handed = self._handed_at(step)
        return not any(sample in handed for sample in self._of.get(slot, ()))

    def others(self, wish: Wish, policy: Policy) -> list[Slot]:
        """The recordings of what is asked that are of other policies."""
        asked = [sample.slot for key in dict.fromkeys(wish.keys) for sample in self._samples.get(key, ())]
        return [slot for slot in dict.fromkeys(asked) if not self._may(slot, policy)]

    def _handed_at(self, step: int) -> set[Sample]:
        handed = self._handed.setdefault(step, set())
        self._handed.move_to_end(step)
        if len(self._handed) > STEPS:
            self._handed.popitem(last=False)
        return handed

    def _allowed(self, key: _Key, policy: Policy) -> list[Ranked]:
        own = policy.own or 0
        found = [
            Ranked(sample, own if (version := policy.version(sample.slot)) is None else version, at)
            for at, sample in enumerate(self._samples.get(key, ()))
            if self._may(sample.slot, policy)
        ]
        return allowed_samples(found, self._ranking, own, self._draw, key[0])

    @property
    def _ranking(self) -> VersionRule:
        """Which of those that may answer do so first."""
        return VersionRule("any") if self._rule.text == "same" else self._rule

    def _may(self, slot: Slot, policy: Policy) -> bool:
        """Whether the policy of a recording may answer this one."""
        if self._rule.text == "any":
            return True
        if self._rule.text == "same":
            in_step = policy.declared or not policy.knows_step or slot.step == policy.step
            return in_step and slot.weights == policy.weights
        own, version = policy.own, policy.version(slot)
        return own is not None and version is not None and self._rule.allows(version, own)


def missing_calls(wish: Wish, found: Sequence[Sample | None]) -> list[MissingCall]:
    """The calls that generate what is missing: one, unless seeds are missing here and there."""
    parts = wish.parts
    if parts is None:
        return []
    places = [place for place, sample in enumerate(found) if sample is None]
    if parts.seed is not None:
        runs: list[list[int]] = []
        for place in places:
            if runs and runs[-1][-1] == place - 1:
                runs[-1].append(place)
            else:
                runs.append([place])
        return [MissingCall((0,), len(run), parts.seed + run[0], tuple(run)) for run in runs]
    by_prompt: dict[int, int] = {}
    for place in places:
        by_prompt[place // parts.n] = by_prompt.get(place // parts.n, 0) + 1
    rests = [Rest(prompt, parts.n - count, count) for prompt, count in by_prompt.items()]
    if not rests:
        return []
    call = plan_call(rests, parts.n, can_choose=True)
    return [MissingCall(call.positions, call.n, None, tuple(places))]


def _wish(dialect: Dialect | None, target: str, body: Any, naming: Naming) -> Wish:
    said = counted(dialect, body, naming)
    parts = take_apart(dialect, said)
    if parts is None:
        content = canonical([target, said])
        return Wish(None, (content,), ((_digest(content), None),))
    contents = tuple(canonical([target, parts.rest, prompt]) for prompt in parts.prompts)
    seeds: Sequence[int | None] = [None if parts.seed is None else parts.seed + at for at in range(parts.n)]
    return Wish(parts, contents, tuple((key, seed) for key in map(_digest, contents) for seed in seeds))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _number(weights: str) -> int | None:
    return int(weights) if weights.isascii() and weights.isdigit() and len(weights) <= 18 else None
