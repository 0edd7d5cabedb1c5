"""The inputs of a stage: which arguments are recorded, and whether replay was given the same ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rolltape.batch import Dismantled, dismantle
from rolltape.batch.columns import ArrayColumn, Column, RaggedColumn
from rolltape.codec.pack import Packed, pack
from rolltape.errors import StageError
from rolltape.tape.recording import Recording


def chosen_inputs(
    function: Callable[..., Any], inputs: bool | Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The recorded arguments by name, defaults included; ``self`` and ``cls`` are not inputs."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    names = list(bound.arguments)
    if inputs is True:
        wanted = [name for at, name in enumerate(names) if not (at == 0 and name in ("self", "cls"))]
    else:
        wanted = list(inputs or ())
    return {name: bound.arguments[name] for name in wanted}


def check_input_names(function: Callable[..., Any], inputs: bool | Sequence[str]) -> None:
    """Refuse names the function does not have, when the stage is declared."""
    known = list(inspect.signature(function).parameters)
    for name in inputs if not isinstance(inputs, bool) else ():
        if name not in known:
            raise StageError(
                f"{function.__qualname__} has no argument {name!r} to record",
                hint=f"its arguments: {', '.join(known)}",
            )


def pack_inputs(arguments: dict[str, Any]) -> tuple[Dismantled, Packed]:
    """Copy the inputs as they are now; the live call may change them."""
    parts = dismantle(arguments)
    return parts, pack(parts)


def describe_difference(recorded: Recording, given: Dismantled) -> tuple[str, str]:
    """Where inputs differ from the recorded ones, for people: (recorded, given)."""
    old = recorded.value()
    before = dismantle(old)
    if before.samples != given.samples:
        return f"{before.samples} samples", f"{given.samples} samples"
    missing = [name for name in before.columns if name not in given.columns]
    extra = [name for name in given.columns if name not in before.columns]
    if missing or extra:
        return f"columns {', '.join(before.columns)}", f"columns {', '.join(given.columns)}"
    for name, column in before.columns.items():
        for sample in range(before.samples):
            was, now = _cell(column, sample), _cell(given.columns[name], sample)
            if was != now:
                return f"{name}[{sample}] = {_short(was)}", f"{name}[{sample}] = {_short(now)}"
    return "other values beside the samples (options, types, shapes)", "different ones"


def _cell(column: Column, sample: int) -> Any:
    if isinstance(column, ArrayColumn):
        return column.dtype, column.data[sample].tolist(), column.data[sample].tobytes()
    if isinstance(column, RaggedColumn):
        end = int(column.lengths[: sample + 1].sum())
        row = column.values[end - int(column.lengths[sample]) : end]
        return column.dtype, row.tolist(), row.tobytes()
    return repr(column.values[sample])


def _short(cell: Any) -> str:
    text = cell if isinstance(cell, str) else f"{cell[0]} {cell[1]}"
    return text if len(text) <= 120 else f"{text[:119]}…"
