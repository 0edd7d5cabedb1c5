"""Computes a recorded stage again from what the tape has, and compares with what was recorded."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rolltape.batch.arrays import Bits
from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.batch.roles import names_of
from rolltape.batch.tree import dismantle
from rolltape.errors import ConfigError, MismatchError, RolltapeError, StageError, StepMissingError
from rolltape.reader.run import Run
from rolltape.reader.samples import STATES, Kept, Samples
from rolltape.verify.align.column_alignment import Pairs, compare_columns, pair
from rolltape.verify.align.counted_places import Counted
from rolltape.verify.comparison import Entry
from rolltape.verify.measure.difference import same
from rolltape.verify.measure.limits import Limits
from rolltape.verify.measure.verdict import Verdict, judge
from rolltape.verify.rerun.formulas import ARGUMENTS, FORMULAS, RESULTS, STAGES, TOKEN_ROWS
from rolltape.verify.rules.kinds import kind_of


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
    hint = f"write module:function, or one of {', '.join(FORMULAS)}"
    if not module or not attribute:
        raise ConfigError(f"--fn {name!r} is no function", hint=hint)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` has it: what people write lies where they work
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _theirs(name, error) from error
        raise ConfigError(
            f"--fn {name!r} is no function: {error}", causes=[f"looked for in {os.getcwd()}"], hint=hint
        ) from None
    except Exception as error:
        raise _theirs(name, error) from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigError(f"--fn {name!r} is no function: {module} has no {attribute!r}", hint=hint)
    return found  # type: ignore[no-any-return]


def _theirs(name: str, error: BaseException) -> StageError:
    """The error for an exception in a function that is not ours: where it was raised, and what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    return StageError(
        f"{name} raised {type(error).__name__}: {error}",
        where=None if last is None else f"{last.filename}:{last.lineno}, in {last.name}",
        hint="mend the function; ROLLTAPE_TRACEBACK=1 shows all of the way there",
    )


@dataclass(frozen=True, slots=True)
class Fit:
    """What of the built-in formulas there is for a stage."""

    formula: str | None
    """The one whose inputs are on the tape, if any."""
    reason: str = ""
    """Why there is none; empty where no formula is for stages of this name."""


def formula_for(run: Run, split: str, step: int, stage: str, given: Container[str] = ()) -> Fit:
    """The built-in formula for stages of this name whose inputs are on the tape, or ``given``."""
    known = known_of(run, split, step, stage).values
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
        if p.default is not p.empty and p.name not in given and p.name not in ARGUMENTS
    }


def rerun(
    run: Run,
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
    found = known_of(run, split, step, stage)
    target, known = found.target, found.values
    kept = [at for at in range(len(target.ids)) if samples is None or at in samples]
    if not kept:
        raise StepMissingError(f"no sample {samples}", where=run.location, hint=f"it has {len(target.ids)}")
    missing = [argument for argument in _lacking(function, known) if argument not in options]
    if missing:
        raise StepMissingError(
            f"stage {stage!r} of step {step} cannot be computed again: not on the tape: {', '.join(missing)}",
            where=run.location,
            causes=["it was declared without inputs=True", "no earlier stage returned it under that name"],
            hint=f"on the tape: {', '.join(sorted(known)) or 'nothing'}; or give it: --set {missing[0]}=…",
        )
    given = arguments_of(name, found)
    _check_kinds(name, options)
    result = computed(name, {**given, **options})
    taken = {word: value for word, value in given.items() if isinstance(value, (bool, int, float, str))}
    settings = {**taken, **options} | defaults(name, {*given, *options})
    return Rerun(stage, name, _compared(split, step, stage, target, kept, result), settings)


def _check_kinds(name: str, options: Mapping[str, Any]) -> None:
    """Refuse text, or the like, for a setting of a built-in formula that is a number or a switch."""
    if name not in FORMULAS:
        return
    for word, parameter in inspect.signature(FORMULAS[name]).parameters.items():
        default = parameter.default
        if word not in options or default is parameter.empty or word in ARGUMENTS:
            continue
        value, switch = options[word], isinstance(default, bool)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (isinstance(value, bool) if switch else number or (value is None and default is None)):
            kind = "true or false" if switch else "a number"
            raise ConfigError(f"{word} of {name} is {kind}, not {value!r}", hint=f"--set {word}={default}")


def arguments_of(name: str, known: Known) -> dict[str, Any]:
    """The arguments of a function that the tape has."""
    return {word: known.values[inner] for word, inner in known.names_for(name).items()}


def result_rows(name: str, arguments: Mapping[str, Any], column: str) -> Any:
    """What a function gives for a recorded column, sample by sample."""
    parts = dismantle(computed(name, arguments))
    for found, made in parts.columns.items():
        last = found.rsplit("/", 1)[-1]
        if column.rsplit("/", 1)[-1] in (last, *_names(last, RESULTS)):
            return made.rows()
    return []


def compared_with(entry: Entry, target: Samples, result: Any) -> Entry | None:
    """One recorded column against what a function gave; None where it gives no such thing."""
    every = list(range(len(target.ids)))
    found = _compared(entry.split, entry.step, entry.stage, target, every, result)
    return next((one for one in found if one.name == entry.name), None)


def computed(name: str, arguments: Mapping[str, Any]) -> Any:
    """What a function returns; an exception in it is its own, not ours."""
    if name in FORMULAS and (unlike := _unlike(arguments)):
        raise MismatchError(
            f"{name} cannot be computed: {unlike}",
            causes=[
                "they are padded to different widths, and no mask or length says which places are tokens"
            ],
            hint="record a mask (response_mask) or lengths with them, or give a function of your own: --fn",
        )
    try:
        return function_of(name)(**arguments)
    except RolltapeError:
        raise
    except Exception as error:
        raise _theirs(name, error) from error


def _unlike(arguments: Mapping[str, Any]) -> str:
    """Where rows of tokens do not have the same number of places; empty where all do."""
    rows = {word: arguments[word] for word in TOKEN_ROWS if arguments.get(word) is not None}
    if "advantage" in arguments and all(np.ndim(row) == 1 for row in arguments["advantage"]):
        rows["advantage"] = arguments["advantage"]
    names = list(rows)
    for name in names[1:]:
        pairs = enumerate(zip(rows[names[0]], rows[name], strict=False))
        for at, (one, other) in pairs:
            if len(one) != len(other):
                return f"`{names[0]}` has {len(one)} and `{name}` {len(other)} places in sample {at}"
    return ""


def accepts(name: str, option: str) -> bool:
    """Whether a function has an argument of this name."""
    found = inspect.signature(function_of(name)).parameters.values()
    return any(argument.name == option or argument.kind is argument.VAR_KEYWORD for argument in found)


def _lacking(function: Callable[..., Any], known: Mapping[str, Any]) -> list[str]:
    """Those it needs and the tape lacks."""
    needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    return [name for name in needed if not _name_of(name, known)]


def _name_of(argument: str, known: Mapping[str, Any]) -> str:
    return next((name for name in (argument, *_names(argument, ARGUMENTS)) if name in known), "")


def _names(word: str, roles: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """What columns that hold an argument or a result are called."""
    return names_of(*roles[word]) if word in roles else ()


@dataclass(frozen=True, slots=True)
class Known:
    """What a stage could have been computed from."""

    target: Samples
    """The recorded stage."""
    values: dict[str, Any]
    """By the last part of their names, in the order of its samples."""
    sources: dict[str, str]
    """Where each is from, as ``stage/column``."""

    def names_for(self, function: str) -> dict[str, str]:
        """Which of the values each argument of a function is."""
        words = inspect.signature(function_of(function)).parameters
        return {word: name for word in words if (name := _name_of(word, self.values))}


def known_of(run: Run, split: str, step: int, stage: str, base: Run | None = None) -> Known:
    """The recorded stage, and all that it could have been computed from, in the order of its samples.

    ``base`` is the tape that the run replayed, where that is known better than the run itself knows.
    """
    there = [name for name in run.stages(split) if run.files(name, split).at(step)]
    if stage not in there:
        raise StepMissingError(
            f"stage {stage!r} of step {step} is not on the tape",
            where=run.location,
            hint=f"stages there: {', '.join(there) or 'none'}",
        )
    target = run.samples(step, stage, split)
    known, sources = dict[str, Any](), dict[str, str]()

    def add(name: str, values: dict[str, Any]) -> None:
        known.update(values)
        sources.update({value: f"{name}/{value}" for value in values})

    earlier = _earlier(run, base or run.baseline(), split, step, stage, there)
    lengths = _lengths(earlier, split, step, target)
    for source, name in earlier:
        add(name, _values(source.samples(step, name, split), target, lengths))
    add(stage, _values(target, target, lengths, own=True))
    inputs = [replace(recording.key, inputs=True) for recording in target.recordings]
    if all(run.storage.exists(key.path) for key in inputs):
        add(stage, _values(Samples([run.recording(key) for key in inputs]), target, lengths))
    return Known(target, known, sources)


def _lengths(earlier: Sequence[tuple[Run, str]], split: str, step: int, target: Samples) -> np.ndarray | None:
    """How many tokens the response of each sample has, as the rollout says; None where it does not."""
    for source, name in earlier:
        if name == "rollout":
            rollout = source.samples(step, name, split)
            pairs, counts = _paired(target, rollout), rollout.token_counts[1]
            if counts is not None and not pairs.only_left:
                found: np.ndarray = np.asarray(counts)[pairs.right]
                return found
    return None


def _paired(target: Samples, side: Samples) -> Pairs:
    """Which samples are the same; by their order where one of them does not say who they are."""
    if (target.anonymous or side.anonymous) and len(target) == len(side):
        straight = np.arange(len(target))
        return Pairs(list(target.ids), straight, straight, [], [])
    return pair(target.ids, side.ids)


def _earlier(
    run: Run, base: Run | None, split: str, step: int, stage: str, there: list[str]
) -> list[tuple[Run, str]]:
    """What the step had before a stage, in order: on the tape, or on the one that it replayed."""
    place = _position(run, split, step, stage)
    found = dict.fromkeys(there, run)
    if base is not None:
        found = {name: base for name in base.stages(split) if base.files(name, split).at(step)} | found
    before = {name: _position(source, split, step, name) for name, source in found.items()}
    order = sorted(
        (name for name in found if before[name] < place and name not in STATES), key=before.__getitem__
    )
    return [(found[name], name) for name in order]


def _position(run: Run, split: str, step: int, stage: str) -> int:
    about = run.recording(run.files(stage, split).at(step)[0]).about
    return (about.position if about.order is None else about.order) or 0


def _values(
    side: Samples, target: Samples, lengths: np.ndarray | None, *, own: bool = False
) -> dict[str, Any]:
    """The columns of a stage by the last part of their name, in the order of other samples."""
    pairs = _paired(target, side)
    found = {} if own else _settings(side)
    if pairs.only_left:
        return found
    for name in side.columns:
        if name not in side.apart:
            found[name.rsplit("/", 1)[-1]] = _plain(name, side, pairs, lengths)
    return found


def _settings(side: Samples) -> dict[str, Any]:
    """What belongs to no sample; of several calls what all of them have alike."""
    found: dict[str, Any] = {}
    for at, file in enumerate(side.files):
        mine = {name.rsplit("/", 1)[-1]: value for name, value in file.values()}
        mine = {name: value.data if isinstance(value, Bits) else value for name, value in mine.items()}
        found = mine if not at else {n: v for n, v in found.items() if n in mine and same(mine[n], v)}
    return found


def _plain(name: str, side: Samples, pairs: Pairs, lengths: np.ndarray | None) -> Any:
    """A column as formulas take it: rows without padding, or one value per sample."""
    column = side.columns[name]
    everyone = column.rows()
    picked = [everyone[at] for at in pairs.right]
    if isinstance(column, ObjectColumn):
        return picked
    if isinstance(column, ArrayColumn) and column.data.ndim == 1:
        return np.array(picked)
    keep = side.kept(name, trained=True)
    if keep is None:
        return _unpadded(picked, lengths)
    return [row[part] for row, part in zip(picked, keep.take(pairs.right).parts, strict=True)]


def _unpadded(rows: list[Any], lengths: np.ndarray | None) -> list[Any]:
    """Rows that are longer than their samples have tokens, cut to these: padding stands behind or before."""
    if lengths is None or not rows or any(np.ndim(row) < 1 for row in rows):
        return rows
    counts = [int(count) for count in lengths]
    if any(len(row) < count for row, count in zip(rows, counts, strict=True)):
        return rows
    for behind in (True, False):
        cut = [
            slice(None, n) if behind else slice(len(r) - n, None) for r, n in zip(rows, counts, strict=True)
        ]
        rest = [r[n:] if behind else r[: len(r) - n] for r, n in zip(rows, counts, strict=True)]
        flat = np.concatenate([np.asarray(piece).reshape(-1) for piece in rest])
        if not len(flat) or (flat == flat[0]).all() or (flat != flat).all():
            return [row[part] for row, part in zip(rows, cut, strict=True)]
    return rows


def _compared(
    split: str, step: int, stage: str, target: Samples, kept: list[int], result: Any
) -> list[Entry]:
    """What was computed against what was recorded, under the names that both have."""
    parts = dismantle(result)
    ids = [target.ids[at] for at in kept]
    pairs = Pairs(ids, np.array(kept), np.array(kept), [], [])
    entries = []
    for name, column in parts.columns.items():
        last = name.rsplit("/", 1)[-1]
        known = next((n for n in (last, *_names(last, RESULTS)) if n in target.columns), None)
        if known is None or known in ("uid", "index") or column.samples != len(target.ids):
            continue
        recorded, keep = _recorded(target, known, column)
        places = Counted(keep and keep.take(pairs.left)), Counted(exact=not isinstance(column, ArrayColumn))
        limits = Limits(kind=kind_of(stage, known))
        found = compare_columns(recorded, column, pairs, places, limits)
        note = f"dtype {found.dtypes[0]} against {found.dtypes[1]}" if found.dtypes else ""
        note = note or (f"{len(found.misshapen)} samples have another length" if found.misshapen else "")
        entries.append(
            Entry(
                split, step, stage, known,
                Verdict.INCOMPARABLE if note else judge(found.difference, limits),
                found.difference, found.first, found.worst, found.samples, note,
            )
        )  # fmt: skip
    if not entries:
        raise ConfigError(
            f"what the function returned is nothing that stage {stage!r} recorded",
            hint=f"recorded: {', '.join(target.columns)}; returned: {', '.join(parts.columns) or 'nothing'}",
        )
    return entries


def _recorded(target: Samples, name: str, result: Column) -> tuple[Column, Kept | None]:
    """A recorded column as a result can be compared with: without padding that the result does not have."""
    column, keep = target.columns[name], target.kept(name, trained=True)
    if keep is not None or not isinstance(column, ArrayColumn) or column.data.ndim < 2:
        return column, keep
    lengths = np.array([len(row) if np.ndim(row) else 0 for row in result.rows()], np.int64)
    rows = _unpadded(column.rows(), lengths)
    if all(len(row) == count for row, count in zip(rows, lengths, strict=True)):
        return RaggedColumn(np.concatenate([column.data[:0, 0], *rows]), lengths, column.dtype), None
    return column, None
