"""Checks that weights fit a model exactly: names, shapes, dtypes. Pure; the engine loads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from rolltape.engines.api.libraries import library
from rolltape.errors import WeightsError


class Skeleton:
    """A transformers model without memory for its tensors, with the names that trainers send."""

    def __init__(self, config: Any, dtype: Any, *, extra: str) -> None:
        """``config`` is a transformers config or its path; ``dtype`` is what the engine runs in,
        or its name."""
        torch = library("torch", extra=extra, for_what="update_weights")
        hub = library("transformers", extra=extra, for_what="update_weights")
        if isinstance(config, str):
            config = hub.AutoConfig.from_pretrained(config)
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype.removeprefix("torch."))
        with torch.device("meta"):
            model = model_class(hub, config).from_config(config, dtype=dtype)
        self.model = model
        self._loading = library("transformers.core_model_loading", extra=extra, for_what="update_weights")
        self.tensors = dict(model.state_dict(keep_vars=True))
        self.tied = tied_names(self.tensors)

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return any(".experts." in name for name in self.tensors)

    def as_saved(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors as in a checkpoint, under all of their names: engines read checkpoints.

        A model in memory may hold all experts of a layer in one tensor, which a checkpoint does not have.
        """
        every = dict(given)
        for names in self.tied:
            tensor = next(given[name] for name in names if name in given)
            every |= dict.fromkeys(names, tensor)
        saved: dict[str, Any] = self._loading.revert_weight_conversion(self.model, every)
        return saved


def model_class(hub: Any, config: Any) -> Any:
    """The class of transformers that loads a model: for images and text, where it takes images."""
    seeing = type(config) in hub.AutoModelForImageTextToText._model_mapping
    return hub.AutoModelForImageTextToText if seeing else hub.AutoModelForCausalLM


def tied_names(tensors: Mapping[str, Any]) -> list[list[str]]:
    """The names that share one tensor."""
    owners: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        owners.setdefault(id(tensor), []).append(name)
    return [names for names in owners.values() if len(names) > 1]


def check_fit(given: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Refuse weights that are not exactly those of a torch model: ``WeightsError`` names the tensor.

    Returns the model's own by name. Buffers may be left out, and of names that share memory one is enough.
    """
    expected = dict(model.state_dict(keep_vars=True))
    tied, buffers = tied_names(expected), {name for name, _ in model.named_buffers()}
    for name, tensor in given.items():
        if name not in expected:
            raise _unknown(name, expected)
        mine = expected[name]
        if tuple(tensor.shape) != tuple(mine.shape):
            raise WeightsError(
                f"{name} has shape {tuple(tensor.shape)}, but the engine's has {tuple(mine.shape)}",
                where=name,
                causes=["another size of the model", "a vocabulary that was resized on one side only"],
            )
        if tensor.dtype != mine.dtype:
            raise WeightsError(
                f"{name} is {tensor.dtype}, but the engine's is {mine.dtype}",
                where=name,
                hint=f"send tensor.to({mine.dtype}): a silent cast would hide what the policy samples with",
            )
    for name in expected:
        aliases = next((group for group in tied if name in group), [name])
        if name not in buffers and not any(alias in given for alias in aliases):
            raise WeightsError(
                f"{name} is missing: {len(given)} tensors were given, but the model has {len(expected)}",
                where=name,
                hint="send all of model.state_dict(); partial updates are refused",
            )
    _check_tied(given, tied)
    return expected


def _unknown(name: str, expected: Mapping[str, Any]) -> WeightsError:
    near = get_close_matches(name, expected, n=1, cutoff=0.5)
    return WeightsError(
        f"the engine's model has no tensor {name!r}" + (f"; the nearest is {near[0]!r}" if near else ""),
        where=name,
        causes=["the model is wrapped (a prefix such as `module.` or `base_model.`)", "another architecture"],
    )


def _check_tied(given: Mapping[str, Any], tied: Iterable[Sequence[str]]) -> None:
    """Names that share memory in the model must be given equal tensors."""
    import torch

    for names in tied:
        there = [name for name in names if name in given]
        for name in there[1:]:
            if given[name] is not given[there[0]] and not torch.equal(given[name], given[there[0]]):
                raise WeightsError(
                    f"{name} and {there[0]} are one tensor in the model, but two different ones were given",
                    where=name,
                )
