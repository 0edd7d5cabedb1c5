"""A server that speaks Azure's Blob storage: Azurite, which tools/azurite.py gets from the npm registry."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import shutil
import tempfile
import urllib.request
from collections.abc import Mapping
from types import MappingProxyType

from tests.object_servers.process import Process, free_ports, started
from tools import azurite

ACCOUNT, CONTAINER = "devstoreaccount1", "tapes"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, and its key, as documented: not a secret."""


class AzureServer:
    """One Azurite with one container; `stop` ends it and removes what it stored."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="rolltape-az-")
        self.port = 0
        self.process = started(self._start)
        self._make_container()

    def env(self, port: int | None = None) -> dict[str, str]:
        """What a user would export to reach it, or a proxy before it that listens on another port."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port or self.port}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
            "NO_PROXY": "127.0.0.1",
        }

    def stop(self) -> None:
        self.process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> Process:
        (self.port,) = free_ports(1)
        command = [
            *azurite.ensure(), "--silent", "--disableTelemetry", "--location", self.folder,
            "--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--skipApiVersionCheck",
        ]  # fmt: skip
        return Process(command, f"http://127.0.0.1:{self.port}/")

    def _make_container(self) -> None:
        """obstore makes no containers."""
        self._signed(CONTAINER, "restype=container")

    def lease(self, name: str) -> None:
        """Hold an object, as some tools do: nobody else may write or delete it."""
        said = {"x-ms-lease-action": "acquire", "x-ms-lease-duration": "-1"}
        self._signed(f"{CONTAINER}/{name}", "comp=lease", said)

    def let_go(self, name: str) -> None:
        """Hold it no longer."""
        said = {"x-ms-lease-action": "break", "x-ms-lease-break-period": "0"}
        self._signed(f"{CONTAINER}/{name}", "comp=lease", said)

    def _signed(self, path: str, query: str, more: Mapping[str, str] = MappingProxyType({})) -> None:
        """One request of those that obstore does not have."""
        said = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06", **more}
        named = "".join(f"{name}:{value}\n" for name, value in sorted(said.items()))
        text = "PUT" + "\n" * 12 + f"{named}/{ACCOUNT}/{ACCOUNT}/{path}\n{query.replace('=', ':')}"
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        said["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = f"http://127.0.0.1:{self.port}/{ACCOUNT}/{path}?{query}"
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=said)) as answer:
            assert answer.status in (201, 202)
