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

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from rolltape.errors import ConfigError
from rolltape.verify.difference import COMPARABLE
from rolltape.verify.entries import Entry
from rolltape.verify.ladder import Limits
from rolltape.verify.proof import Proof
from rolltape.verify.sentence import how_much, where

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

    def limits(self, stage: str, name: str, noise: float | None) -> Limits:
        """What passes for a thing of this measured noise."""
        rule = self.rule(f"{stage}/{name}" if name else stage)
        return rule.limits(noise) if rule else Limits(noise=noise)

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


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason why a gate stays shut."""

    path: str
    text: str
    step: int | None = None


def findings(gate: Gate, entries: list[Entry], proofs: list[Proof]) -> list[Finding]:
    """Why the gate stays shut; empty where it opens. One for each thing, at the first step it happens."""
    found: dict[str, Finding] = {}
    for entry in entries:
        if not entry.verdict.clean:
            found.setdefault(
                entry.path, Finding(entry.path, f"{where(entry)}: {how_much(entry)}", entry.step)
            )
    known = {entry.path for entry in entries if entry.difference is not None}
    for pattern in gate.require:
        if not any(fnmatchcase(path, pattern) for path in known):
            found.setdefault(pattern, Finding(pattern, "required, and nothing of this name was compared"))
    same = {proof.what: proof for proof in proofs}
    for name in gate.inputs:
        proof = same.get(name)
        if proof is None or proof.same is not True:
            why = "not on the tapes" if proof is None else proof.how
            found.setdefault(f"inputs/{name}", Finding(f"inputs/{name}", f"not proven to be the same: {why}"))
    return list(found.values())


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
    for at, node in enumerate(config.get("rules") or []):
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
        except (TypeError, ValueError) as error:
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
