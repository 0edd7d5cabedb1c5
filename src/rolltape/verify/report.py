"""All that a comparison has to say, put together once for the terminal, for JSON and for the page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rolltape.storage import Storage
from rolltape.verify.causes import likely_causes
from rolltape.verify.entries import Comparison, Entry, worst_of
from rolltape.verify.origin import Origin, origins
from rolltape.verify.pattern import Cause
from rolltape.verify.proof import Change, Proof, configuration, environment, proofs
from rolltape.verify.sentence import first_divergence
from rolltape.verify.tokens import Speller, Token, Tokens


@dataclass(frozen=True, slots=True)
class Link:
    """One thing in the chain of stages: where it stands in a step, and how far it is off over all steps."""

    split: str
    stage: str
    name: str
    worst: Entry
    first: Entry | None
    """Where it diverges first; None where it does not."""
    errors: tuple[float, ...]
    """Its largest absolute error at every step."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a comparison has to say."""

    sentence: str
    comparison: Comparison
    proofs: list[Proof]
    configuration: list[Change]
    environment: list[Change]
    chain: list[Link]
    causes: list[Cause]
    origins: list[Origin]
    noise: str
    """Which noise the differences were measured against."""
    token: Token | None = None
    """The token of the first divergence, where it is at one."""
    tokenizer: str = ""
    """Where the text of tokens is from, where a tokenizer was named."""


def report(
    comparison: Comparison,
    baseline: Storage,
    candidate: Storage,
    noise: str = "",
    speller: Speller | None = None,
) -> Report:
    """Put together what there is to say; reads the step of the first divergence once more."""
    tokens, first = Tokens(baseline, speller), comparison.first
    return Report(
        first_divergence(comparison, tokens),
        comparison,
        proofs(comparison, baseline, candidate),
        configuration(comparison.manifests),
        environment(comparison.manifests),
        chain(comparison),
        likely_causes(comparison, baseline, candidate),
        origins(comparison),
        noise or "not measured (rolltape noise): the usual tolerance of each dtype applies",
        tokens.at(first.split, first.step, first.first) if first and first.first else None,
        speller.source if speller else "",
    )


def chain(comparison: Comparison) -> list[Link]:
    """Everything compared, in the order in which a step computes it."""
    found = []
    for (split, stage, name), entries in comparison.by_key().items():
        first = next((entry for entry in entries if not entry.verdict.clean), None)
        errors = tuple(entry.error for entry in entries)
        found.append(Link(split, stage, name, worst_of(entries), first, errors))
    return found


def to_json(report: Report) -> dict[str, Any]:
    """The report as JSON values."""
    comparison = report.comparison
    return {
        "sentence": report.sentence,
        "verdict": str(comparison.verdict),
        "baseline": {"dir": comparison.baseline, "id": comparison.manifests[0].id},
        "candidate": {"dir": comparison.candidate, "id": comparison.manifests[1].id},
        "first": entry_json(comparison.first) if comparison.first else None,
        "token": asdict(report.token) if report.token else None,
        "causes": [asdict(cause) for cause in report.causes],
        "proofs": [asdict(proof) for proof in report.proofs],
        "configuration": [asdict(change) for change in report.configuration],
        "environment": [asdict(change) for change in report.environment],
        "shared": list(comparison.shared),
        "noise": report.noise,
        "tokenizer": report.tokenizer or None,
        "steps": [
            {"split": o.split, "step": o.step, "origin": o.origin, "first": o.first.path if o.first else None}
            for o in report.origins
        ],
        "entries": [entry_json(entry) for entry in comparison.entries],
    }


def entry_json(entry: Entry) -> dict[str, Any]:
    """One entry as JSON values."""
    return asdict(entry) | {"verdict": str(entry.verdict)}
