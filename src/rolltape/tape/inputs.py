"""The inputs of a stage: which arguments are recorded, and whether replay was given the same ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rolltape.batch import Dismantled, dismantle
from rolltape.batch.columns import ArrayColumn, Column, RaggedColumn
from rolltape.codec.pack import Packed, pack
from rolltape.errors import StageError
from rolltape.fingerprint import differences, shortened


@dataclass(frozen=True, slots=True)
class Inputs:
    """The chosen arguments of one call, copied as they were given."""

    parts: Dismantled
    packed: Packed

    @property
    def digest(self) -> str:
        """Equal inputs have equal digests."""
        return self.packed.digest()


@dataclass(frozen=True, slots=True)
class Chooser:
    """Which arguments of a function are recorded."""

    signature: inspect.Signature
    names: tuple[str, ...]

    @classmethod
    def of(cls, function: Callable[..., Any], inputs: bool | Sequence[str]) -> Chooser | None:
        """The arguments that ``inputs=`` asks for; all but ``self`` and ``cls`` for True, None for none."""
        if not inputs:
            return None
        shown = getattr(function, "__qualname__", repr(function))
        try:
            signature = inspect.signature(function)
        except ValueError:
            raise StageError(
                f"{shown} does not say what its arguments are, so they cannot be recorded",
                hint="wrap it in a function with named arguments, or leave out inputs=",
            ) from None
        known = list(signature.parameters)
        if isinstance(inputs, str):
            raise StageError(f"inputs={inputs!r} is text", hint=f"write inputs=[{inputs!r}], or inputs=True")
        if inputs is True:
            return cls(signature, tuple(known[1:] if known[:1] in (["self"], ["cls"]) else known))
        for name in inputs:
            if name not in known:
                hint = f"its arguments: {', '.join(known)}"
                raise StageError(f"{shown} has no argument {name!r} to record", hint=hint)
        return cls(signature, tuple(inputs))

    def choose(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The chosen arguments of a call by name, defaults included."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return {name: bound.arguments[name] for name in self.names}


def copy_inputs(arguments: dict[str, Any]) -> Inputs:
    """Copy the inputs as they are now; the live call may change them."""
    parts = dismantle(arguments)
    return Inputs(parts, pack(parts))


def describe_difference(recorded: Any, given: Dismantled) -> tuple[str, str] | None:
    """Where inputs first differ from the recorded ones, for people: (recorded, given); None if nowhere."""
    before = dismantle(recorded)
    return next(_differences(before, given), None)


def _differences(before: Dismantled, given: Dismantled) -> Iterator[tuple[str, str]]:
    if before.samples != given.samples:
        yield _samples(before), _samples(given)
    for name in before.columns:
        if name in given.columns:
            yield from _in_column(_shown_name(before, name), before.columns[name], given.columns[name])
    for where, old, new in differences(before.tree, given.tree):
        yield f"{where} = {old}", f"{where} = {new}"
    for name, bits in before.wholes.items():
        other = given.wholes.get(name)
        if other is not None and (bits.dtype, bits.data.tobytes()) != (other.dtype, other.data.tobytes()):
            old, new = shortened(f"{bits.dtype} {bits.data.tolist()}", f"{other.dtype} {other.data.tolist()}")
            yield f"{name} = {old}", f"{name} = {new}"


def _samples(parts: Dismantled) -> str:
    return "1 sample" if parts.samples == 1 else f"{parts.samples} samples"


def _shown_name(parts: Dismantled, column: str) -> str:
    """The column with the argument it belongs to, where their names differ."""
    for argument, node in parts.tree.items() if isinstance(parts.tree, dict) else ():
        if argument != column and _mentions(node, column):
            return f"{argument}: {column}"
    return column


def _mentions(node: Any, column: str) -> bool:
    if isinstance(node, dict):
        return node.get("$column") == column or any(_mentions(child, column) for child in node.values())
    return isinstance(node, list) and any(_mentions(child, column) for child in node)


def _in_column(name: str, before: Column, given: Column) -> Iterator[tuple[str, str]]:
    """The first sample in which two columns differ, and where in it."""
    for sample in range(min(before.samples, given.samples)):
        was, now = _cell(before, sample), _cell(given, sample)
        if not isinstance(was, np.ndarray) or not isinstance(now, np.ndarray):
            if repr(was) != repr(now):
                old, new = shortened(repr(was), repr(now))
                yield f"{name}[{sample}] = {old}", f"{name}[{sample}] = {new}"
                return
        elif (was.dtype, was.shape) != (now.dtype, now.shape):
            old, new = (f"{name}[{sample}] is {row.dtype} {list(row.shape)}" for row in (was, now))
            yield old, new
            return
        elif was.tobytes() != now.tobytes():
            at = _first_different(was, now)
            place = f"{name}[{sample}]" + "".join(f"[{index}]" for index in at)
            yield f"{place} = {was[at].item()!r}", f"{place} = {now[at].item()!r}"
            return


def _cell(column: Column, sample: int) -> Any:
    if isinstance(column, ArrayColumn):
        return np.asarray(column.data[sample])
    if isinstance(column, RaggedColumn):
        end = int(column.lengths[: sample + 1].sum())
        return column.values[end - int(column.lengths[sample]) : end]
    return column.values[sample]


def _first_different(was: np.ndarray, now: np.ndarray) -> tuple[int, ...]:
    """The index of the first element whose bits differ."""
    old, new = (np.frombuffer(row.tobytes(), np.uint8).reshape(was.size, -1) for row in (was, now))
    flat = int((old != new).any(axis=1).argmax())
    return tuple(int(index) for index in np.unravel_index(flat, was.shape))
