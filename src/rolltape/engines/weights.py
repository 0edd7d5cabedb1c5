"""Whether given weights are exactly the model's: names, shapes, dtypes. Pure; loading is up to the engine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from rolltape.errors import WeightsError


def check_weights(
    given: Mapping[str, Any],
    expected: Mapping[str, Any],
    *,
    tied: Collection[Collection[str]] = (),
    optional: Collection[str] = (),
) -> None:
    """Compare tensors by name. Of names in one ``tied`` set, which share their memory, one is enough.

    ``expected`` has the model's own tensors, or anything with ``shape`` and ``dtype``; ``optional`` names
    those that may be left out, such as buffers.
    """
    for name, tensor in given.items():
        if name not in expected:
            raise _unknown(name, expected)
        mine = expected[name]
        if tuple(tensor.shape) != tuple(mine.shape):
            raise WeightsError(
                f"{name} has the shape {tuple(tensor.shape)} and the engine's has {tuple(mine.shape)}",
                where=name,
                causes=["another size of the model", "a vocabulary that was resized on one side only"],
            )
        if tensor.dtype != mine.dtype:
            raise WeightsError(
                f"{name} is {_dtype(tensor)} and the engine's is {_dtype(mine)}",
                where=name,
                hint=f"send tensor.to({_dtype(mine)}): a silent cast would hide what the policy samples with",
            )
    for name in expected:
        if name in optional:
            continue
        aliases = next((group for group in tied if name in group), (name,))
        if not any(alias in given for alias in aliases):
            raise WeightsError(
                f"{name} is missing: {len(given)} tensors were given and the model has {len(expected)}",
                where=name,
                hint="send all of model.state_dict(); a half update is refused",
            )


def _unknown(name: str, expected: Mapping[str, Any]) -> WeightsError:
    near = get_close_matches(name, expected, n=1, cutoff=0.5)
    return WeightsError(
        f"the engine's model has no tensor {name!r}" + (f"; the nearest is {near[0]!r}" if near else ""),
        where=name,
        causes=["the model is wrapped (a prefix such as `module.` or `base_model.`)", "another architecture"],
    )


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype)


def check_tied(given: Mapping[str, Any], tied: Iterable[Sequence[str]]) -> None:
    """Names that share their memory in the model have to be given equal tensors."""
    import torch

    for names in tied:
        there = [name for name in names if name in given]
        for name in there[1:]:
            if given[name] is not given[there[0]] and not torch.equal(given[name], given[there[0]]):
                raise WeightsError(
                    f"{name} and {there[0]} are one tensor in the model, and two different ones were given",
                    where=name,
                )
