"""Computes a recorded stage again from what the tape has, and compares with what was recorded."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rolltape.batch.arrays import Bits
from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.batch.tree import dismantle
from rolltape.errors import ConfigError, StepMissingError
from rolltape.storage import LocalStorage, Storage
from rolltape.tape.manifest import read_manifest
from rolltape.tape.recording import Recording
from rolltape.tape.shelf import recordings
from rolltape.verify.entries import STATES, Entry
from rolltape.verify.formulas import FORMULAS, NAMES, RESULTS, STAGES
from rolltape.verify.ladder import Limits, Verdict, judge
from rolltape.verify.padding import Masks
from rolltape.verify.samples import Pairs, compare_columns, pair
from rolltape.verify.side import Id, Side, read, rows


@dataclass(frozen=True, slots=True)
class Rerun:
    """A stage computed again."""

    stage: str
    function: str
    entries: list[Entry]
    """One for each result that is on the tape too."""
    settings: dict[str, Any]
    """The function's settings: those that were given, and what the others are then."""


def function_of(name: str) -> Callable[..., Any]:
    """A built-in formula by name, or ``module:function``."""
    if name in FORMULAS:
        return FORMULAS[name]
    module, _, attribute = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"--fn {name!r} is no function: {error}",
            hint=f"write module:function, or one of {', '.join(FORMULAS)}",
        ) from None
    return found


@dataclass(frozen=True, slots=True)
class Fit:
    """What of the built-in formulas there is for a stage."""

    formula: str | None
    """The one whose inputs are on the tape, if any."""
    reason: str = ""
    """Why there is none; empty where no formula is for stages of this name."""


def formula_for(storage: Storage, split: str, step: int, stage: str, given: Container[str] = ()) -> Fit:
    """The built-in formula for stages of this name whose inputs are on the tape, or ``given``."""
    known = _known(storage, split, step, stage)[1]
    for word, names in STAGES:
        if word in stage:
            lacks = {name: [a for a in _lacking(FORMULAS[name], known) if a not in given] for name in names}
            fits = next((name for name in names if not lacks[name]), None)
            wants = "; ".join(f"{name} needs {', '.join(missing)}" for name, missing in lacks.items())
            return Fit(fits, "" if fits else f"{wants}: not on the tape")
    return Fit(None)


def defaults(name: str, given: Container[str]) -> dict[str, Any]:
    """The settings of a formula that nobody gave, and what they are then."""
    found = inspect.signature(function_of(name)).parameters.values()
    return {
        p.name: p.default
        for p in found
        if p.default is not p.empty and p.name not in given and p.name not in NAMES
    }


def rerun(
    storage: Storage,
    split: str,
    step: int,
    stage: str,
    name: str,
    options: Mapping[str, Any],
    samples: Container[int] | None = None,
) -> Rerun:
    """Compute a stage again, and compare all samples or some.

    Inputs that were recorded with it come first, then what earlier stages of the step returned.
    """
    function = function_of(name)
    target, known = _known(storage, split, step, stage)
    kept = [at for at in range(len(target.ids)) if samples is None or at in samples]
    if not kept:
        raise StepMissingError(
            f"no sample {samples}", where=storage.location, hint=f"it has {len(target.ids)}"
        )
    missing = [argument for argument in _lacking(function, known) if argument not in options]
    if missing:
        raise StepMissingError(
            f"stage {stage!r} of step {step} cannot be computed again: not on the tape: {', '.join(missing)}",
            where=storage.location,
            causes=["it was declared without inputs=True", "no earlier stage returned it under that name"],
            hint=f"on the tape: {', '.join(sorted(known)) or 'nothing'}; or give it: --set {missing[0]}=…",
        )
    given = {argument: known[_name_of(argument, known)] for argument in _arguments(function, known)}
    result = function(**given | dict(options))
    taken = {word: value for word, value in given.items() if isinstance(value, (bool, int, float, str))}
    settings = {**taken, **options} | defaults(name, {*given, *options})
    return Rerun(stage, name, _compared(split, step, stage, target, kept, result), settings)


def accepts(name: str, option: str) -> bool:
    """Whether a function has an argument of this name."""
    found = inspect.signature(function_of(name)).parameters.values()
    return any(argument.name == option or argument.kind is argument.VAR_KEYWORD for argument in found)


def _arguments(function: Callable[..., Any], known: Mapping[str, Any]) -> list[str]:
    """Those of the function's arguments that the tape has."""
    return [name for name in inspect.signature(function).parameters if _name_of(name, known)]


def _lacking(function: Callable[..., Any], known: Mapping[str, Any]) -> list[str]:
    """Those it needs and the tape lacks."""
    needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    return [name for name in needed if not _name_of(name, known)]


def _name_of(argument: str, known: Mapping[str, Any]) -> str:
    return next((name for name in (argument, *NAMES.get(argument, ())) if name in known), "")


def _known(storage: Storage, split: str, step: int, stage: str) -> tuple[Side, dict[str, Any]]:
    """The recorded stage, and all that it could have been computed from, in the order of its samples."""
    found = _recorded(storage, split, step)
    if stage in found and (before := replayed(storage)) is not None:
        found = _recorded(before, split, step) | found
    if stage not in found:
        raise StepMissingError(
            f"stage {stage!r} of step {step} is not on the tape",
            where=storage.location,
            hint=f"stages there: {', '.join(found) or 'none'}",
        )
    target = read(found[stage])
    place = found[stage][0].about.get("position", 0)
    earlier = sorted(
        (n for n in found if found[n][0].about.get("position", 0) < place and n not in STATES),
        key=lambda name: found[name][0].about.get("position", 0),
    )
    known: dict[str, Any] = {}
    for name in earlier:
        known |= _values(read(found[name]), target.ids)
    known |= _values(target, target.ids, own=True)
    inputs = [Recording(storage, replace(recording.key, inputs=True)) for recording in found[stage]]
    if all(storage.exists(recording.key.path) for recording in inputs):
        known |= _values(read(inputs), target.ids)
    return target, known


def _recorded(storage: Storage, split: str, step: int) -> dict[str, list[Recording]]:
    """What a tape has of a step, by stage."""
    found: dict[str, list[Recording]] = {}
    for key in recordings(storage, split):
        if key.step == step:
            found.setdefault(key.stage, []).append(Recording(storage, key))
    return found


def replayed(storage: Storage) -> Storage | None:
    """The tape whose replay wrote this one, where it is still there: it has what was not computed anew."""
    manifest = read_manifest(storage)
    if manifest is None or manifest.baseline is None or not os.path.isdir(manifest.baseline["dir"]):
        return None
    other = LocalStorage(manifest.baseline["dir"])
    known = read_manifest(other)
    return other if known is not None and known.id == manifest.baseline["id"] else None


def _values(side: Side, ids: list[Id], *, own: bool = False) -> dict[str, Any]:
    """The columns of a stage by the last part of their name, in the order of other samples."""
    pairs = pair(ids, side.ids)
    found = {} if own else {name.rsplit("/", 1)[-1]: value for name, value in side.values.items()}
    found = {name: value.data if isinstance(value, Bits) else value for name, value in found.items()}
    if pairs.only_left:
        return found
    for name, column in side.columns.items():
        if name not in side.apart:
            found[name.rsplit("/", 1)[-1]] = _plain(column, side, pairs)
    return found


def _plain(column: Column, side: Side, pairs: Pairs) -> Any:
    """A column as formulas take it: rows without padding, or one value per sample."""
    everyone = rows(column)
    picked = [everyone[at] for at in pairs.right]
    if isinstance(column, ObjectColumn):
        return picked
    if isinstance(column, ArrayColumn) and column.data.ndim == 1:
        return np.array(picked)
    keep = Masks(side.columns).content(column, pairs.right, padded=isinstance(column, RaggedColumn))
    return picked if keep is None else [row[part] for row, part in zip(picked, keep.parts, strict=True)]


def _compared(split: str, step: int, stage: str, target: Side, kept: list[int], result: Any) -> list[Entry]:
    """What was computed against what was recorded, under the names that both have."""
    parts = dismantle(result)
    ids = [target.ids[at] for at in kept]
    pairs = Pairs(ids, np.array(kept), np.array(kept), [], [])
    entries = []
    for name, column in parts.columns.items():
        last = name.rsplit("/", 1)[-1]
        known = next((n for n in (last, *RESULTS.get(last, ())) if n in target.columns), None)
        if known is None or known in ("uid", "index") or column.samples != len(target.ids):
            continue
        found = compare_columns(target.columns[known], column, pairs, (Masks(target.columns), Masks()))
        note = f"dtype {found.dtypes[0]} against {found.dtypes[1]}" if found.dtypes else ""
        note = note or (f"{len(found.misshapen)} samples have another length" if found.misshapen else "")
        entries.append(
            Entry(
                split, step, stage, known,
                Verdict.INCOMPARABLE if note else judge(found.difference, Limits()),
                found.difference, found.first, found.worst, found.samples, note,
            )
        )  # fmt: skip
    if not entries:
        raise ConfigError(
            f"what the function returned is nothing that stage {stage!r} recorded",
            hint=f"recorded: {', '.join(target.columns)}; returned: {', '.join(parts.columns) or 'nothing'}",
        )
    return entries
