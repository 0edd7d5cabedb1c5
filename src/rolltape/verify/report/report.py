"""All that a comparison has to say, put together once for the terminal, for JSON and for the page."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from rolltape.verify.comparison import Comparison, Entry, worst_of
from rolltape.verify.diagnose.attribution import Attribution, attribute
from rolltape.verify.diagnose.causes import likely_causes
from rolltape.verify.diagnose.evidence import Cause
from rolltape.verify.diagnose.origin import Origin, origins
from rolltape.verify.diagnose.same_inputs import Change, Proof, configuration, environment, proofs
from rolltape.verify.measure.verdict import Verdict
from rolltape.verify.report.sentence import (
    Confidence,
    confidence,
    first_divergence,
    how_much,
    view_command,
    where,
)
from rolltape.verify.report.token_lookup import Speller, Token, Tokens
from rolltape.verify.rules.gate import Gate


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason why a gate stays shut."""

    path: str
    text: str
    step: int | None = None


def findings(gate: Gate, comparison: Comparison, proofs: list[Proof]) -> list[Finding]:
    """Why the gate stays shut; empty where it opens. One for each thing, at the first step it happens."""
    found: dict[str, Finding] = {}
    entries = comparison.entries
    for entry in entries:
        if not entry.verdict.clean:
            found.setdefault(
                entry.path, Finding(entry.path, f"{where(entry)}: {how_much(entry)}", entry.step)
            )
    known = {entry.path for entry in entries if entry.difference is not None}
    for pattern in gate.require:
        if not any(fnmatchcase(path, pattern) for path in known):
            found.setdefault(pattern, Finding(pattern, "required, and nothing of this name was compared"))
    paths = {entry.path for entry in (*entries, *comparison.allowed, *comparison.apart)}
    for pattern, near in gate.idle(paths).items():
        meant = f"; did you mean {near}?" if near else ""
        found.setdefault(pattern, Finding(pattern, f"a rule matches nothing on these tapes{meant}"))
    same = {proof.what: proof for proof in proofs}
    for name in gate.inputs:
        proof = same.get(name)
        if proof is None or proof.same is not True:
            why = "not on the tapes" if proof is None else proof.how
            found.setdefault(f"inputs/{name}", Finding(f"inputs/{name}", f"not proven to be the same: {why}"))
    return list(found.values())


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
    """What a comparison of two tapes has to say. Made by :func:`rolltape.compare`."""

    sentence: str
    """The answer: where the runs part, or that they do not."""
    confidence: Confidence
    """How sure the answer is."""
    view: str
    """The command that shows the first divergence in the viewer."""
    comparison: Comparison
    """Everything that was compared, entry by entry."""
    findings: list[Finding]
    """Why the candidate does not pass; empty where it does."""
    proofs: list[Proof]
    """Whether both runs began from the same."""
    configuration: list[Change]
    environment: list[Change]
    chain: list[Link]
    causes: list[Cause]
    """What the first divergence looks like; empty where nothing fits."""
    attributions: list[Attribution]
    """Of the stages that diverge at that step: which made an error, and which only passed one on."""
    origins: list[Origin]
    noise: str
    """Which noise the differences were measured against."""
    token: Token | None = None
    """The token of the first divergence, where it is at one."""
    speller: Speller | None = None
    """The tokenizer that spells tokens, where one is known."""

    @property
    def verdict(self) -> Verdict:
        """The worst verdict on anything that was compared."""
        return self.comparison.verdict

    @property
    def first(self) -> Entry | None:
        """The first divergence; None where there is none."""
        return self.comparison.first

    @property
    def clean(self) -> bool:
        """Whether something was compared and nothing speaks against the candidate."""
        return self.comparison.compared and not self.findings

    def _repr_html_(self) -> str:
        """What a notebook shows of it: the page of ``rolltape diff``, in a frame of its own."""
        from rolltape.verify.report.html_page import page

        inner = html.escape(page(self))
        return f'<iframe srcdoc="{inner}" sandbox style="width:100%;height:40em;border:0"></iframe>'

    @property
    def tokenizer(self) -> str:
        """Where the text of tokens is from; empty without a tokenizer."""
        return self.speller.source if self.speller else ""


def report(comparison: Comparison, gate: Gate, noise: str, speller: Speller | None) -> Report:
    """Put together what there is to say; reads the step of the first divergence once more."""
    tokens, first = Tokens(comparison.runs[0], speller), comparison.first
    proven = proofs(comparison)
    steps = origins(comparison, proven)
    return Report(
        first_divergence(comparison, tokens),
        confidence(comparison, proven),
        view_command(comparison),
        comparison,
        findings(gate, comparison, proven),
        proven,
        configuration(comparison.manifests),
        environment(comparison.manifests),
        chain(comparison),
        likely_causes(comparison),
        attribute(comparison, steps),
        steps,
        noise or "not measured (rolltape noise): the usual tolerance of each dtype applies",
        tokens.at(first.split, first.step, first.first) if first and first.first else None,
        speller,
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
        "confidence": asdict(report.confidence),
        "view": report.view,
        "verdict": str(comparison.verdict),
        "baseline": {"dir": comparison.baseline, "id": comparison.manifests[0].id},
        "candidate": {"dir": comparison.candidate, "id": comparison.manifests[1].id},
        "first": entry_json(comparison.first) if comparison.first else None,
        "token": asdict(report.token) if report.token else None,
        "causes": [asdict(cause) for cause in report.causes],
        "attributions": [asdict(one) | {"text": str(one)} for one in report.attributions],
        "proofs": [asdict(proof) for proof in report.proofs],
        "configuration": [asdict(change) for change in report.configuration],
        "environment": [asdict(change) for change in report.environment],
        "shared": list(comparison.shared),
        "apart": list(dict.fromkeys(entry.path for entry in comparison.apart)),
        "within": comparison.within or None,
        "matched_by": comparison.matched or None,
        "noise": report.noise,
        "tokenizer": report.tokenizer or None,
        "steps": [
            {"split": o.split, "step": o.step, "origin": o.origin, "first": o.first.path if o.first else None}
            for o in report.origins
        ],
        "findings": [asdict(finding) for finding in report.findings],
        "entries": [entry_json(entry) for entry in comparison.entries],
    }


def entry_json(entry: Entry) -> dict[str, Any]:
    """One entry as JSON values."""
    return asdict(entry) | {"verdict": str(entry.verdict)}
