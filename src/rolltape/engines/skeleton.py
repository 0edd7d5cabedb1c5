"""The weights of a model, known from its config alone: for engines whose own are fused, sharded or remote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolltape.engines.libraries import library
from rolltape.engines.weights import check_tied, check_weights


class Skeleton:
    """A transformers model without memory behind its tensors, in the names that trainers send."""

    def __init__(self, config: Any, dtype: Any, *, extra: str) -> None:
        """``config`` is a transformers config or the path of one; ``dtype`` is what the engine runs in,
        or the name of it."""
        torch = library("torch", extra=extra, for_what="update_weights")
        hub = library("transformers", extra=extra, for_what="update_weights")
        if isinstance(config, str):
            config = hub.AutoConfig.from_pretrained(config)
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype.removeprefix("torch."))
        seeing = type(config) in hub.AutoModelForImageTextToText._model_mapping
        kind = hub.AutoModelForImageTextToText if seeing else hub.AutoModelForCausalLM
        with torch.device("meta"):
            model = kind.from_config(config, dtype=dtype)
        self._model = model
        self._loading = library("transformers.core_model_loading", extra=extra, for_what="update_weights")
        self.tensors = dict(model.state_dict(keep_vars=True))
        self.buffers = {name for name, _ in model.named_buffers()}
        owners: dict[int, list[str]] = {}
        for name, tensor in self.tensors.items():
            owners.setdefault(id(tensor), []).append(name)
        self.tied = [names for names in owners.values() if len(names) > 1]

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return any(".experts." in name for name in self.tensors)

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse what is not exactly this model's: ``WeightsError`` names the tensor."""
        check_weights(given, self.tensors, tied=self.tied, optional=self.buffers)
        check_tied(given, self.tied)

    def as_saved(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors as a checkpoint has them, under all of their names: engines read checkpoints.

        A model in memory may hold all experts of a layer in one tensor, of which a checkpoint has none.
        """
        every = dict(given)
        for names in self.tied:
            tensor = next(given[name] for name in names if name in given)
            every |= dict.fromkeys(names, tensor)
        saved: dict[str, Any] = self._loading.revert_weight_conversion(self._model, every)
        return saved
