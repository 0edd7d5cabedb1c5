"""A model from a path, with the tokenizer and processor that lie beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rolltape.engines.libraries import library
from rolltape.errors import ConfigError, MissingDependencyError

_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


def load(path: str, tokenizer: Any, processor: Any, dtype: Any) -> tuple[Any, Any, Any]:
    """Model, tokenizer and, for a model that takes images, processor. What is given is used as it is."""
    hub = library("transformers", extra="transformers", for_what="TransformersEngine")
    config = hub.AutoConfig.from_pretrained(path)
    seeing = type(config) in hub.AutoModelForImageTextToText._model_mapping
    kind = hub.AutoModelForImageTextToText if seeing else hub.AutoModelForCausalLM
    model = kind.from_pretrained(path, dtype=dtype or "auto")
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
            f"the processor of the model needs what is not installed here: {str(error).strip()}",
            where=path,
            hint="install what is named, torchvision for videos, or pass processor=",
        ) from error


def _tokenizer(hub: Any, path: str) -> Any:
    try:
        return hub.AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"there is no tokenizer beside the model {path}", where=path, hint="pass tokenizer="
        ) from error
