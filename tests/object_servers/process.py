"""A server as a process: ports that nobody else takes, waiting until it answers, its log when it dies."""

from __future__ import annotations

import atexit
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

_WITH_PARENT = """
import signal, subprocess, sys
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
signal.signal(signal.SIGTERM, lambda *_: (server.kill(), sys.exit(0)))
signal.signal(signal.SIGCHLD, lambda *_: sys.exit(server.poll()) if server.poll() is not None else None)
if server.poll() is None:
    sys.stdin.read()
    server.kill()
sys.exit(server.wait())
"""
"""Runs a command for as long as its own standard input is open: whoever holds the other end may be killed."""

_PORTS = range(20_000, 32_000)
"""Below what Linux gives to outgoing connections: a port that was free a moment ago still is."""


class ServerDied(AssertionError):
    """The server ended, or never answered; its log is in the message."""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that are free now, chosen at random: parallel sessions seldom meet."""
    chosen: dict[int, socket.socket] = {}
    dice = random.Random(os.urandom(8))
    try:
        while len(chosen) < count:
            port = dice.choice(_PORTS)
            if port in chosen:
                continue
            tried = socket.socket()
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                tried.close()
                continue
            chosen[port] = tried
    finally:
        for tried in chosen.values():
            tried.close()
    return list(chosen)


class Process:
    """A running server; `stop` ends it, and so does the end of this process."""

    def __init__(self, command: Sequence[str], ready: str, seconds: float = 60) -> None:
        """Start it, and return when the address `ready` answers, whatever it says."""
        self.log = tempfile.NamedTemporaryFile(prefix="rolltape-store-", suffix=".log")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WITH_PARENT, *command],
            stdin=subprocess.PIPE, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._owner = os.getpid()
        atexit.register(self.stop)
        self._wait(ready, seconds)

    def runs(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        """The end of its log."""
        return Path(self.log.name).read_text(errors="replace")[-8000:]

    def stop(self) -> None:
        """End it at once; nothing of a test's store is worth a graceful end."""
        if self._owner == os.getpid() and self.runs():
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()

    def _wait(self, ready: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self.runs() and time.monotonic() < end:
            if _answers(ready):
                return
            time.sleep(0.05)
        state = "did not answer" if self.runs() else f"ended with {self._process.poll()}"
        self.stop()
        raise ServerDied(f"the server {state}:\n{self.said()}")


def started(start: Callable[[], Process], tries: int = 3) -> Process:
    """Start a server, again with other ports where another process was quicker to take one."""
    for _ in range(tries - 1):
        try:
            return start()
        except ServerDied:
            continue
    return start()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
