"""``rolltape.compare``: the one comparison of two tapes, which every surface asks."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from rolltape.config_file import load_file
from rolltape.errors import ConfigError, MissingDependencyError
from rolltape.reader import run as reader
from rolltape.reader.run import Run, looking
from rolltape.reader.tokenizer import load_tokenizer, token_texts
from rolltape.spread import HERE, Spread
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.storage import Storage
from rolltape.verify.compare_runs import compare_runs
from rolltape.verify.comparison import Comparison
from rolltape.verify.report.report import Report, report
from rolltape.verify.report.token_lookup import Speller
from rolltape.verify.rules.gate import Gate, is_apart, parse
from rolltape.verify.rules.noise_floor import read_floor

Tape: TypeAlias = str | os.PathLike[str] | Run


def compare(
    baseline: Tape,
    candidate: Tape,
    *,
    gate: Gate | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    steps: object = None,
    tokenizer: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    spread: Spread = HERE,
) -> Report:
    """Compare two tapes: every stage and every metric, by step, sample and token.

    The noise floor that was measured on the baseline applies, and so do the changes it has accepted.

    Args:
        baseline: The tape that is right, by its path or as a run.
        candidate: A tape that a replay of it wrote, or one recorded by itself.
        gate: What may differ and what must not: the path of a YAML or JSON file, or what it holds.
        steps: Only these steps, as in ``"0-9,20"``.
        tokenizer: A model's folder or a ``tokenizer.json``, to show tokens as text. Without one, that of the
            model which the baseline names, where it is on this machine.
        progress: Told how many steps are done, and of how many.
        spread: Where steps are compared: in this process, or on the nodes of ``rolltape.ray.cluster()``.
    """
    ours, theirs = (tape if isinstance(tape, Run) else reader.open(tape) for tape in (baseline, candidate))
    if ours.replays(theirs) and not theirs.replays(ours):
        raise ConfigError(
            f"{ours.path} is a replay of {theirs.path}: the baseline comes first, then the candidate",
            where=ours.location,
            hint=f"rolltape diff {shlex.quote(theirs.path)} {shlex.quote(ours.path)}",
        )
    rules = _gate(gate)
    floor = read_floor(ours.storage)
    if floor is None and rules.needs_floor:
        raise ConfigError(
            "the gate has limits in multiples of the noise floor, and no floor was measured",
            where=gate if isinstance(gate, (str, Path)) else None,
            hint=f"rolltape noise {ours.location} -- COMMAND",
        )
    with looking():
        compared = compare_runs(
            ours,
            theirs,
            steps=ALL_STEPS if steps is None else StepSelector.parse(steps),
            rules=partial(rules.limits, floor=floor),
            progress=progress,
            spread=spread,
        )
        compared.set_apart(lambda entry: is_apart(entry, rules))
        compared.allow(rules.allows)
        compared.find_biases()
        return report(compared, rules, str(floor) if floor else "", _speller(tokenizer, ours.fingerprint))


def compare_tapes(baseline: Storage, candidate: Storage, *, steps: object = None) -> Comparison:
    """Deprecated: call :func:`rolltape.compare`, whose report has this as ``comparison``."""
    warnings.warn("compare_tapes is deprecated: call rolltape.compare", DeprecationWarning, stacklevel=2)
    return compare(baseline.location, candidate.location, steps=steps).comparison


def _gate(gate: Gate | Mapping[str, Any] | str | os.PathLike[str] | None) -> Gate:
    if gate is None or isinstance(gate, Gate):
        return gate or Gate()
    return parse(load_file(gate), gate if isinstance(gate, (str, Path)) else None)


def _speller(named: str | None, fingerprint: Mapping[str, Any]) -> Speller | None:
    """The tokenizer that is asked for; else that of the model which the tape names, where it is here."""
    said = [fingerprint.get(part) for part in ("tokenizer", "model")]
    here = next((path for path in said if isinstance(path, str) and os.path.isdir(path)), None)
    path = named or here
    if path is None:
        return None
    try:
        decode = load_tokenizer(path)
    except (ConfigError, MissingDependencyError):
        if named:
            raise
        return None  # nobody asked for it: tokens are shown by their ids
    source = os.path.abspath(path) if named else f"{path}, which the tape names"
    return Speller(source, lambda ids: token_texts(decode, ids))
