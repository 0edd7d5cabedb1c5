"""Which experts the tokens of a forward pass were sent to, told by the routers of the model itself."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import torch

from rolltape.errors import EngineError


def routers(model: Any) -> list[torch.nn.Module]:
    """The routers of a mixture-of-experts model, layer after layer; none in any other model."""
    kinds: set[type] = set()
    for module in model.modules():
        recorded = (getattr(module, "_can_record_outputs", None) or {}).get("router_logits")
        for one in recorded if isinstance(recorded, (list, tuple)) else [recorded]:
            kind = getattr(one, "target_class", one)
            if isinstance(kind, type) and kind is not torch.nn.Linear:  # which says nothing about experts
                kinds.add(kind)
    return [module for module in model.modules() if type(module) in kinds]


class Routing:
    """Listens to the routers of a model inside the block."""

    def __init__(self, model: Any) -> None:
        self._routers = routers(model)
        self._heard: list[torch.Tensor] = []
        self._hooks: list[Any] = []

    def __enter__(self) -> Routing:
        self._hooks = [router.register_forward_hook(self._hear) for router in self._routers]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    def take(self, rows: int) -> np.ndarray:
        """The experts of the last forward pass, ``(rows, tokens, layers, experts per token)``."""
        heard, self._heard = self._heard, []
        layers = [experts.reshape(rows, -1, experts.shape[-1]) for experts in heard]
        routes: np.ndarray = torch.stack(layers, 2).to("cpu", torch.int16).numpy()
        return routes

    def _hear(self, router: torch.nn.Module, given: Any, output: Any) -> None:
        parts = output if isinstance(output, tuple) else (output,)
        chosen = [part for part in parts if torch.is_tensor(part) and not part.is_floating_point()]
        if len(chosen) != 1:
            raise EngineError(
                f"the routers of the model, {type(router).__name__}, do not say which experts they chose",
                where="SamplingParams.routes",
            )
        self._heard.append(chosen[0])
