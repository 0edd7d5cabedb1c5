"""``ServedEngine``: what engines on a server share: connections, and weight updates through a folder."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rolltape.engines.api.completion import Completion
from rolltape.engines.api.engine import Engine
from rolltape.engines.api.finishing import listener
from rolltape.engines.api.libraries import library
from rolltape.engines.api.prompt import Prompt
from rolltape.engines.api.weights import Skeleton
from rolltape.engines.servers.http_client import Server
from rolltape.errors import ConfigError, StorageError


@contextmanager
def written(
    folder: str | os.PathLike[str], tensors: Mapping[str, Any], version: int, *, extra: str
) -> Iterator[str]:
    """The path of the weights, which exists until the block ends: by then the server has loaded them."""
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
    """On the CPU, contiguous, and each with its own memory: the format cannot store one tensor twice."""
    plain: dict[str, Any] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        plain[name] = own.clone() if own.data_ptr() in seen else own
        seen.add(own.data_ptr())
    return plain


def _telling(
    jobs: Sequence[tuple[int, Callable[[], list[Completion]]]],
) -> list[Callable[[], list[Completion]]]:
    """The jobs; each tells its completions as soon as it has them. Those of a prompt give as many each."""
    told = listener()
    if told is None:
        return [job for _, job in jobs]

    def run(position: int, number: int, job: Callable[[], list[Completion]]) -> list[Completion]:
        rows = job()
        told(position, number * len(rows), rows)
        return rows

    numbers: Counter[int] = Counter()
    found: list[Callable[[], list[Completion]]] = []
    for position, job in jobs:
        found.append(partial(run, position, numbers[position], job))
        numbers[position] += 1
    return found


class ServedEngine(Engine):
    """Samples on a server. The first request is sent when the engine is first used."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        concurrency: int = 64,
        timeout: float = 600.0,
        retries: int = 8,
        weights_dir: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        weights_version: int = 0,
        max_staleness: int | None = None,
    ) -> None:
        """``timeout`` is for one request; up to ``concurrency`` requests run at a time. A failed request is
        retried up to ``retries`` times, with growing waits in between.

        For ``update_weights``: ``weights_dir`` is a folder that the server sees under the same path, and
        ``checkpoint`` the folder of its model, if that is not where the server says.
        """
        super().__init__(weights_version=weights_version, max_staleness=max_staleness)
        self.server = Server(
            base_url,
            api_key=api_key,
            concurrency=concurrency,
            timeout=timeout,
            retries=retries,
            before_retry=self._refuse_lost_weights,
            extra=self.name,
        )
        self._weights_dir, self._checkpoint = weights_dir, checkpoint
        self._sent_version: int | None = None
        self._skeleton: Skeleton | None = None

    def close(self) -> None:
        """Close the connections; the server keeps running."""
        self.server.close()

    def _config(self, root: str | None) -> dict[str, Any]:
        """The config of the server's model; empty if its folder does not exist on this machine."""
        try:
            found = json.loads((Path(self._checkpoint or root or "") / "config.json").read_text())
        except (OSError, ValueError):
            return {}
        return dict(found)

    def _vocab_size(self, root: str | None) -> int | None:
        """How many tokens the server's model has, if its folder exists on this machine."""
        config = self._config(root)
        found = (config.get("text_config") or {}).get("vocab_size") or config.get("vocab_size")
        return None if found is None else int(found)

    def _sampled(
        self, prompts: Sequence[Prompt], jobs: Sequence[tuple[int, Callable[[], list[Completion]]]]
    ) -> list[list[Completion] | Exception]:
        """For each prompt what its jobs return, in their order, or the first error of one of them."""
        answers: list[list[Completion] | Exception] = [[] for _ in prompts]
        found = self.server.each(_telling(jobs))
        for (position, _), rows in zip(jobs, found, strict=True):
            so_far = answers[position]
            if not isinstance(so_far, Exception):
                answers[position] = rows if isinstance(rows, Exception) else [*so_far, *rows]
        return answers

    # -- weights ---------------------------------------------------------------------------------------

    def _refuse_lost_weights(self) -> None:
        """Runs after a lost connection: raises if the server now has other weights."""

    def _shared_folder(self) -> str | os.PathLike[str]:
        if self._weights_dir is None:
            raise ConfigError(
                "update_weights needs weights_dir=, a folder that the server sees under the same path"
            )
        return self._weights_dir

    def _expected(self, root: str | None, dtype: Callable[[], str | None]) -> Skeleton:
        """The server's model, built from its config; ``root`` is the folder that the server reports."""
        if self._skeleton is None:
            where = self._checkpoint or root
            if where is None or not os.path.exists(where):
                raise ConfigError(
                    f"cannot check the weights: the server's model {where} does not exist on this machine",
                    hint="pass checkpoint=, the folder of the same model",
                )
            self._skeleton = Skeleton(os.fspath(where), dtype(), extra=self.name)
        return self._skeleton
