"""Loads a model from a path, with the tokenizer and processor in the same folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rolltape.engines.api.libraries import library
from rolltape.engines.api.weights import model_class
from rolltape.errors import ConfigError, MissingDependencyError


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switch a model to evaluation inside the block, and back to its mode afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        # Not inference_mode: buffers that the model updates on the way must stay usable for training.
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


def load(path: str, tokenizer: Any, processor: Any, dtype: Any) -> tuple[Any, Any, Any]:
    """Model, tokenizer and, for a model that takes images, processor. Those that are given are not loaded."""
    hub = library("transformers", extra="transformers", for_what="TransformersEngine")
    config = hub.AutoConfig.from_pretrained(path)
    kind = model_class(hub, config)
    model = kind.from_pretrained(path, dtype=dtype or "auto")
    seeing = kind is not hub.AutoModelForCausalLM
    if seeing and processor is None and any((Path(path) / name).exists() for name in _PROCESSOR_FILES):
        processor = _processor(hub, path)
    if tokenizer is None:
        tokenizer = getattr(processor, "tokenizer", None) or _tokenizer(hub, path)
    return model, tokenizer, processor


def _processor(hub: Any, path: str) -> Any:
    try:
        return hub.AutoProcessor.from_pretrained(path)
    except ImportError as error:  # of torchvision, which all processors of videos need
        raise MissingDependencyError(
            f"the processor of the model needs a missing package: {str(error).strip()}",
            where=path,
            hint="install the named package (torchvision for videos), or pass processor=",
        ) from error


def _tokenizer(hub: Any, path: str) -> Any:
    try:
        return hub.AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the folder of the model {path} has no tokenizer", where=path, hint="pass tokenizer="
        ) from error
