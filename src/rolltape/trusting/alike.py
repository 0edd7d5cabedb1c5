"""Whether two log-probs of a token are of the same kind: like is compared with like, or not at all. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rolltape.errors import ConfigError

_NAMES = {"logprobs_mode": "kind", "logprob_kind": "kind"}
_KINDS = {"raw": "raw", "raw_logprobs": "raw", "processed": "processed", "processed_logprobs": "processed"}


@dataclass(frozen=True, slots=True)
class Kind:
    """Which distribution log-probs belong to; None where nobody says."""

    kind: str | None = None
    """``raw``, of the model's unchanged logits, or ``processed``: after temperature, top-k and top-p."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    tokenizer: str | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Kind:
        """From settings by name; a name may have a path in front, as in ``sampling.temperature``."""
        known = {field.name for field in fields(cls)}
        found: dict[str, Any] = {}
        for name, value in settings.items():
            last = name.replace("/", ".").rsplit(".", 1)[-1]
            last = _NAMES.get(last, last)
            if last in known and value is not None and last not in found:
                found[last] = value
        if "kind" in found and (kind := _KINDS.get(str(found["kind"]))) is None:
            del found["kind"]
        elif "kind" in found:
            found["kind"] = kind
        for name in ("temperature", "top_p", "top_k", "min_p"):
            if name in found and not isinstance(found[name], (int, float)):
                del found[name]
        if "tokenizer" in found:
            found["tokenizer"] = str(found["tokenizer"])
        return cls(**found)

    @classmethod
    def given(cls, settings: Mapping[str, Any] | None) -> Kind:
        """The same from what a user says, where a wrong name is an error."""
        known = [field.name for field in fields(cls)]
        unknown = [name for name in settings or {} if name not in known]
        if unknown:
            raise ConfigError(
                f"{unknown[0]!r} says nothing about log-probs", hint=f"there are: {', '.join(known)}"
            )
        found = cls.of(settings or {})
        lost = [name for name in settings or {} if getattr(found, name) is None]
        if lost:
            raise ConfigError(
                f"{lost[0]}={(settings or {})[lost[0]]!r} cannot be", hint="kind is raw or processed"
            )
        return found

    def over(self, other: Kind) -> Kind:
        """This, and what the other knows besides."""
        mine = {field.name: getattr(self, field.name) for field in fields(self)}
        return Kind(**{name: getattr(other, name) if one is None else one for name, one in mine.items()})

    @property
    def truncates(self) -> str:
        """What leaves tokens out of the distribution, in words; empty where nothing does."""
        if self.kind == "raw":
            return ""
        found = [f"top_p={self.top_p:g}"] if self.top_p is not None and 0 < self.top_p < 1 else []
        found += [f"top_k={self.top_k:g}"] if self.top_k is not None and self.top_k > 0 else []
        found += [f"min_p={self.min_p:g}"] if self.min_p is not None and self.min_p > 0 else []
        return ", ".join(found)

    @property
    def heat(self) -> float | None:
        """The temperature that is in the log-probs."""
        return 1.0 if self.kind == "raw" else self.temperature


NOBODY_SAYS = Kind()


def refusals(engine: Kind, trainer: Kind, *, mass_known: bool = False) -> list[str]:
    """Why the two cannot be compared, each by name; nothing where they can, or where nobody says enough."""
    found = []
    if engine.kind and trainer.kind and engine.kind != trainer.kind and not _same_anyway(engine, trainer):
        found.append(f"kind of log-prob: the engine's are {engine.kind}, the trainer's {trainer.kind}")
    elif engine.heat is not None and trainer.heat is not None and engine.heat != trainer.heat:
        found.append(
            f"temperature: {engine.heat:g} in the engine's log-probs, {trainer.heat:g} in the trainer's"
        )
    cut, other = (engine.truncates if engine.kind else ""), (trainer.truncates if trainer.kind else "")
    if not found and cut != other and not mass_known:
        found.append(
            f"kept set: the engine's log-probs are those of {cut or 'the whole distribution'}, the "
            f"trainer's of {other or 'the whole distribution'}; a column kept_mass would tell by how much"
        )
    if engine.tokenizer and trainer.tokenizer and engine.tokenizer != trainer.tokenizer:
        found.append(f"tokenisation: {engine.tokenizer} and {trainer.tokenizer}")
    return found


def corrected_by_mass(engine: Kind, trainer: Kind) -> bool:
    """Whether the kept mass makes the engine's log-probs those of the trainer's distribution: not where they
    are of the whole one already, nor where the trainer's are of a part of it too.
    """
    return engine.kind != "raw" and not (trainer.kind and trainer.truncates)


def _same_anyway(one: Kind, other: Kind) -> bool:
    """Whether a processed distribution is the raw one, because nothing is processed."""
    cooked = one if one.kind == "processed" else other
    return cooked.temperature in (None, 1, 1.0) and not cooked.truncates
