"""A model as it is used for sampling and scoring: no dropout, no gradients, and afterwards as before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switch a model to evaluation inside the block; the trainer finds it in the mode it left it in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        # Not inference_mode: buffers that the model updates on the way must stay usable for training.
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
