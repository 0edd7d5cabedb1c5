"""`rolltape serve` in a process of its own, as a user starts it, in front of an engine or with none."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.engines.servers import Process


class Serving:
    """A running `rolltape serve`: its address, what it says while it runs and when it has ended."""

    def __init__(self, tape: Path, mode: str, *options: str, upstream: str | None = None) -> None:
        command = [sys.executable, "-m", "rolltape", "serve", str(tape), "--mode", mode, "--json", *options]
        command += ["--upstream", upstream] if upstream else []
        self.log = tempfile.NamedTemporaryFile(prefix="rolltape-serve-", suffix=".log")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        self.url = self._address()
        self.summary: dict[str, Any] = {}

    def _address(self) -> str:
        """Its first line."""
        watch = threading.Timer(60, self.process.kill)
        watch.start()
        try:
            line = self.process.stdout.readline().strip()
        finally:
            watch.cancel()
        assert line.startswith("http://127.0.0.1:"), f"{line}\n{self.errors()}"
        return line

    def status(self) -> dict[str, Any]:
        return httpx.get(f"{self.url}/rolltape/status", timeout=30).json()

    def errors(self) -> str:
        return Path(self.log.name).read_text(errors="replace")

    def stop(self) -> dict[str, Any]:
        """End it as Ctrl-C does; what it says at the end."""
        if not self.summary:
            self.process.send_signal(signal.SIGINT)
            try:
                said, _ = self.process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.communicate()
                raise AssertionError(f"the server did not end:\n{self.errors()[-4000:]}") from None
            assert said.strip(), f"no summary, exit code {self.process.returncode}:\n{self.errors()[-4000:]}"
            self.summary = json.loads(said)
        return self.summary


@contextlib.contextmanager
def serving(tape: Path, mode: str, *options: str, upstream: str | None = None) -> Iterator[Serving]:
    server = Serving(tape, mode, *options, upstream=upstream)
    try:
        yield server
        server.stop()
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.communicate()
        server.log.close()


@contextlib.contextmanager
def recording(tape: Path, engine: Process, *options: str) -> Iterator[Serving]:
    """In front of an engine; every call that was answered is on the tape afterwards."""
    with serving(tape, "record", *options, upstream=engine.url) as server:
        yield server
    calls = server.summary["calls"]
    assert calls["recorded"] == calls["asked"] - calls["retried"], server.summary
    assert server.summary["upstream"]["calls"] >= calls["recorded"]


@contextlib.contextmanager
def replaying(tape: Path, engine: Process, *options: str, missed: int = 0) -> Iterator[Serving]:
    """From the tape alone, while the engine stands still: whoever asked it for something would wait."""
    with standing_still(engine), serving(tape, "replay", *options) as server:
        yield server
    assert server.summary["upstream"]["calls"] == 0, server.summary
    assert server.summary["calls"]["missed"] == missed, server.summary


@contextlib.contextmanager
def standing_still(engine: Process) -> Iterator[None]:
    os.killpg(engine.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(engine.process.pid, signal.SIGCONT)
