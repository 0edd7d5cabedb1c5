"""Google's storage, emulated by gcp-storage-emulator: enough to say why `gs://` is not tested against it.

obstore speaks the XML interface to Google (the path is /bucket/object). The emulator has uploads and
downloads of it without the headers that obstore insists on, ignores the condition that makes a create
exclusive, and answers 501 to HEAD, LIST, DELETE and to uploads in parts.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from tests.object_servers.process import Process, free_ports, started

BUCKET = "tapes"


class GoogleServer:
    """One emulator with one bucket, in memory."""

    def __init__(self) -> None:
        self.port = 0
        self.process = started(self._start)
        self._account = tempfile.NamedTemporaryFile("w", suffix=".json")  # noqa: SIM115

    def env(self, port: int | None = None) -> dict[str, str]:
        """What a user would export to reach it."""
        nobody = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        account = {"gcs_base_url": f"http://127.0.0.1:{port or self.port}", "disable_oauth": True, **nobody}
        Path(self._account.name).write_text(json.dumps(account))
        return {
            "GOOGLE_SERVICE_ACCOUNT": self._account.name,
            "GOOGLE_ALLOW_HTTP": "true",
            "NO_PROXY": "127.0.0.1",
        }

    def stop(self) -> None:
        self.process.stop()
        self._account.close()

    def _start(self) -> Process:
        (self.port,) = free_ports(1)
        program = os.path.join(os.path.dirname(sys.executable), "gcp-storage-emulator")
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--in-memory", "--default-bucket", BUCKET]
        return Process([program, "start", *options], f"http://127.0.0.1:{self.port}/")
