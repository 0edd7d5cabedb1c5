"""``ServedEngine``: what engines behind a server share: connections, and weights through a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rolltape.engines.engine import Engine
from rolltape.engines.serving import Server
from rolltape.engines.skeleton import Skeleton
from rolltape.errors import ConfigError


class ServedEngine(Engine):
    """Samples on a server. The server is first asked when the engine is first used."""

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
        """``timeout`` is for one request, of which ``concurrency`` run at a time; each is tried ``retries``
        more times, with growing waits in between.

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
        """Close the connections; the server stays."""
        self.server.close()

    def _config(self, root: str | None) -> dict[str, Any]:
        """The config of the server's model; empty if its folder cannot be seen here."""
        try:
            found = json.loads((Path(self._checkpoint or root or "") / "config.json").read_text())
        except (OSError, ValueError):
            return {}
        return dict(found)

    def _vocab_size(self, root: str | None) -> int | None:
        """How many tokens the server's model has, if its folder can be seen here."""
        config = self._config(root)
        found = (config.get("text_config") or {}).get("vocab_size") or config.get("vocab_size")
        return None if found is None else int(found)

    # -- weights ---------------------------------------------------------------------------------------

    def _refuse_lost_weights(self) -> None:
        """Asked after a lost connection: raises if the server can be seen to have other weights now."""

    def _shared_folder(self) -> str | os.PathLike[str]:
        if self._weights_dir is None:
            raise ConfigError(
                "update_weights needs weights_dir=, a folder that the server sees under the same path"
            )
        return self._weights_dir

    def _expected(self, root: str | None, dtype: Callable[[], str | None]) -> Skeleton:
        """The server's model, made from its config; ``root`` is where the server says that it is."""
        if self._skeleton is None:
            where = self._checkpoint or root
            if where is None or not os.path.exists(where):
                raise ConfigError(
                    f"the weights cannot be checked: the server's model {where} is not to be seen here",
                    hint="checkpoint=, the folder of the same model",
                )
            self._skeleton = Skeleton(os.fspath(where), dtype(), extra=self.name)
        return self._skeleton
