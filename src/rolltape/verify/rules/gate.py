"""A gate: what may differ between two runs, and what must not, written down once.

    rules:                                    # the first whose pattern fits decides
      - {match: "rollout/*", bitwise: true}
      - {match: "loss/log_probs", ulp: 8}
      - {match: "metrics/grad_norm", floor: 3, rtol: 1e-3}
      - {match: "metrics/time/*", allow: true}
    require: ["loss/log_probs", "metrics/grad_norm"]
    inputs: [rollout, configuration]          # of what `rolltape diff` proves, what has to be the same

A thing passes when any of the limits of its rule holds; what no rule names has the usual limits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from rolltape.errors import ConfigError
from rolltape.verify.comparison import METRICS, Entry
from rolltape.verify.measure.difference import COMPARABLE
from rolltape.verify.measure.limits import Limits
from rolltape.verify.rules.kinds import is_clock, kind_of
from rolltape.verify.rules.noise_floor import Floor

_LIMITS = ("bitwise", "ulp", "floor", "rtol", "atol", "allow")


@dataclass(frozen=True, slots=True)
class Rule:
    """What passes for the things whose path fits a pattern."""

    match: str
    """As in a shell: ``loss/*``, ``metrics/grad_norm``."""
    ulp: int = -1
    floor: float | None = None
    """How many times the measured noise passes."""
    rtol: float | None = None
    atol: float | None = None
    allow: bool = False
    """Whether it may differ, or be missing, however much."""

    def limits(self, noise: float | None) -> Limits:
        """The rule as limits, for a thing of this measured noise."""
        tolerance = {}
        if self.rtol is not None or self.atol is not None:
            tolerance = dict.fromkeys(COMPARABLE, (self.rtol or 0.0, self.atol or 0.0))
        return Limits(self.ulp, tolerance, None if self.floor is None else noise, self.floor or 0.0)


@dataclass(frozen=True, slots=True)
class Gate:
    """All rules of a gate."""

    rules: tuple[Rule, ...] = ()
    require: tuple[str, ...] = ()
    """Patterns; each has to fit something that was compared."""
    inputs: tuple[str, ...] = ()
    """What both runs have to have begun from alike."""

    def limits(
        self,
        stage: str,
        name: str,
        floor: Floor | None = None,
        *,
        single: bool = False,
        step: int | None = None,
    ) -> Limits:
        """What passes for a thing at a step; ``single`` says that it is a number of no sample."""
        noise = floor.of(stage, name, step) if floor else None
        if rule := self.rule(f"{stage}/{name}" if name else stage):
            return rule.limits(noise)
        leaning = floor.means.get((stage, name)) if floor else None
        return Limits(noise=noise, noise_mean=leaning, kind=kind_of(stage, name, single=single))

    def idle(self, paths: Collection[str]) -> dict[str, str]:
        """The patterns of rules that fit none of these things, each with one that may have been meant."""
        found = {}
        for rule in self.rules:
            if not any(fnmatchcase(path, rule.match) for path in paths):
                found[rule.match] = next(iter(get_close_matches(rule.match, sorted(paths), 1)), "")
        return found

    def allows(self, entry: Entry) -> bool:
        """Whether it may differ, however much."""
        rule = self.rule(entry.path)
        return rule is not None and rule.allow

    def rule(self, path: str) -> Rule | None:
        """The rule that decides about a thing; None where none does."""
        return next((rule for rule in self.rules if fnmatchcase(path, rule.match)), None)

    @property
    def needs_floor(self) -> bool:
        """Whether any rule speaks of measured noise."""
        return any(rule.floor is not None for rule in self.rules)


METER = "trust/"
"""Begins the name of every metric that a live meter writes; a replay has some that its baseline has not."""


def is_apart(entry: Entry, gate: Gate) -> bool:
    """Whether it is listed and not judged: a metric that tells of the machine, or that a meter of trust wrote
    (``rolltape trust`` judges those), and that no rule of the gate names; or a rank that only one side has.
    """
    if entry.stage != METRICS:
        return False
    told = is_clock(entry.name) or entry.name.startswith(METER)
    return not entry.name or (told and gate.rule(entry.path) is None)


def parse(config: Mapping[str, Any], where: object = None) -> Gate:
    """A gate from what a YAML or JSON file holds; refuses what it does not know."""

    def refuse(what: str, hint: str | None = None) -> ConfigError:
        return ConfigError(what, where=where, hint=hint or "docs/ci.md shows a gate")

    unknown = set(config) - {"rules", "require", "inputs"}
    if unknown:
        raise refuse(
            f"a gate has no {', '.join(sorted(map(str, unknown)))}", "it has rules, require and inputs"
        )
    rules = []
    listed = config.get("rules") or []
    if not isinstance(listed, list):
        raise refuse("rules is a list of rules")
    for at, node in enumerate(listed):
        if not isinstance(node, Mapping) or not isinstance(node.get("match"), str):
            raise refuse(f"rule {at + 1} has no match", 'write {match: "loss/*", ulp: 4}')
        if strange := set(node) - {"match", *_LIMITS}:
            raise refuse(
                f"rule {at + 1} has no limit {', '.join(sorted(map(str, strange)))}",
                f"limits: {', '.join(_LIMITS)}",
            )
        if not set(node) & set(_LIMITS):
            raise refuse(f"rule {at + 1} ({node['match']}) has no limit", f"limits: {', '.join(_LIMITS)}")
        try:
            rules.append(_rule(node))
        except (TypeError, ValueError, OverflowError) as error:
            raise refuse(f"rule {at + 1} ({node['match']}): {error}") from None
    lists = {name: config.get(name) or [] for name in ("require", "inputs")}
    for name, value in lists.items():
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise refuse(f"{name} is a list of texts")
    return Gate(tuple(rules), tuple(lists["require"]), tuple(lists["inputs"]))


def _rule(node: Mapping[str, Any]) -> Rule:
    for name in ("bitwise", "allow"):
        if name in node and node[name] is not True:
            raise ValueError(f"{name} is true, or left out")
    if "bitwise" in node and len(node) > 2:
        raise ValueError("bitwise leaves no room for another limit")
    # PyYAML takes 1e-3 for a text: only 1.0e-3 is a number to it.
    numbers = {name: float(node[name]) for name in ("floor", "rtol", "atol") if name in node}
    if any(not 0 <= number < float("inf") for number in numbers.values()):
        raise ValueError("a limit is a number from 0 on")
    steps = node.get("ulp", -1)
    if type(steps) is not int or steps < -1:
        raise ValueError("ulp is a whole number from 0 on")
    return Rule(node["match"], steps, allow="allow" in node, **numbers)
