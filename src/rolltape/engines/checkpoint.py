"""Weights as a folder of safetensors, for servers that take updates from a disk shared with the trainer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rolltape.engines.libraries import library
from rolltape.errors import StorageError


@contextmanager
def written(
    folder: str | os.PathLike[str], tensors: Mapping[str, Any], version: int, *, extra: str
) -> Iterator[str]:
    """The path of the weights, there until the block ends: a server has them in memory by then."""
    safetensors = library("safetensors", extra=extra, for_what="update_weights")
    torch_form = library("safetensors.torch", extra=extra, for_what="update_weights")
    path = Path(folder).absolute() / f"weights-{version}-{os.getpid()}"
    try:
        try:
            path.mkdir(parents=True, exist_ok=True)
            torch_form.save_file(_plain(tensors), path / "model.safetensors", metadata={"format": "pt"})
        except (OSError, safetensors.SafetensorError) as error:
            raise StorageError(
                f"the weights could not be written for the server: {error}", where=path
            ) from error
        yield str(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _plain(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """On the CPU, in one piece, and each in memory of its own: the format has no two names for one."""
    plain: dict[str, Any] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        plain[name] = own.clone() if own.data_ptr() in seen else own
        seen.add(own.data_ptr())
    return plain
