"""Reads dumps in a process of its own, with limits that the system enforces.

No code in a dump runs. But a dump of a few bytes can be made to take any time or memory, or to crash the
unpickler of Python itself, and that must not stop the import of the others. The process is asked for one dump
after the other, by a line of JSON each, and answers each by a line; when it fails it is replaced.

The time on the clock is limited by the parent, so that nobody waits for a dump that waits for something.
Where the system has no limit of memory (macOS) the time alone is limited.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rolltape.errors import CorruptFileError
from rolltape.importing.unpickle import GROWTH, SLACK
from rolltape.storage.memory_limit import memory_limit

_MB = 10**6
_LONGEST_ANSWER = 2**20

STARTING = 300
"""Seconds that a process may take to start and to import what it needs: on a busy machine that is long."""

READING = b'"reading"\n'
"""What a process says when it begins to read: from then on the time of the dump is limited."""


def cpu_seconds(size: int) -> int:
    """The processor time that a dump of so many bytes may take: a healthy one takes a tenth of it at most."""
    return max(8, math.ceil(2 * size / _MB))


def clock_seconds(size: int) -> int:
    """The time on the clock that it may take, from when its reader begins; it is not to wait for others."""
    return max(10, math.ceil(3 * size / _MB))


def memory_bytes(size: int) -> int:
    """The memory that a dump of so many bytes may take, with all that is made of it for the tape."""
    return min(2 * SLACK + GROWTH * size, memory_limit())


class Worker:
    """A process that reads dumps; started when it is first asked, and again after each failure."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: dict[str, Any], size: int) -> dict[str, Any]:
        """The answer; ``CorruptFileError`` if the process failed, or took too long."""
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({**question, "size": size}).encode() + b"\n")
            process.stdin.flush()
            line = _line(process, STARTING)
            if line is not None and line.startswith(READING):
                line = line[len(READING) :] or _line(process, clock_seconds(size))
        except OSError:
            line = b""
        if line is None or not line.endswith(b"\n"):
            raise self._failed(size, late=line is None)
        answer: dict[str, Any] = json.loads(line)
        if answer.get("worn"):
            self._stop()
        return answer

    def close(self) -> None:
        """Let it finish what it has open."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._let_go(process)

    def _started(self) -> subprocess.Popen[bytes]:
        start = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        start += "from rolltape.importing.tape_import import serve; serve(json.loads(sys.argv[2]))"
        command = [sys.executable, "-c", start, json.dumps(sys.path), json.dumps(self._job)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _failed(self, size: int, *, late: bool) -> CorruptFileError:
        code = self._stop()
        if late:
            why = f"it took too long to read, more than the {clock_seconds(size)} s that its size allows"
        elif code == -signal.SIGXCPU:
            why = f"it took too much processor time to read, more than {cpu_seconds(size)} s"
        elif code in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
            why = f"it crashed its reader ({signal.Signals(-code).name})"
        else:
            why = f"its reader ended ({code})"
        return CorruptFileError(why, causes=["the dump is damaged, or was made to do this"])

    def _stop(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if not _ending(process):
            process.kill()
        code = process.wait()
        self._let_go(process)
        return code

    @staticmethod
    def _let_go(process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _ending(process: subprocess.Popen[bytes]) -> bool:
    """Whether it ends by itself: its exit code says more than ours would."""
    try:
        process.wait(1)
    except subprocess.TimeoutExpired:
        return False
    return True


def _line(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """The next line of its answers; without its end where it died, None where it is late.

    Time in which it was ready to run and the machine was busy with others is not its own.
    """
    assert process.stdout is not None
    fd = process.stdout.fileno()
    found = b""
    deadline = time.monotonic() + seconds - _starved(process.pid)
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while not found.endswith(b"\n") and len(found) < _LONGEST_ANSWER:
            if not selector.select(max(deadline - time.monotonic(), 0.1)):
                if time.monotonic() < deadline + _starved(process.pid):
                    continue
                process.kill()
                return None
            more = os.read(fd, 65536)
            if not more:
                break
            found += more
    return found


def _starved(pid: int) -> float:
    """Seconds that the threads of a process have waited for a processor; 0 where the system does not say."""
    waited = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat", "rb") as file:
                waited = max(waited, int(file.read().split()[1]))
    return waited / 1e9


# -- in the process itself -----------------------------------------------------------------------------


def answer_all(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer every question on standard input, each within its limits."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        question = json.loads(line)
        for file in question["files"].values():
            _prepare(Path(file))
        _limit(question["size"])
        out.write(READING)
        out.flush()
        try:
            said = answer(question)
        except MemoryError:
            said = {"problem": ["damaged", "it needs too much memory to read"], "worn": True}
        out.write(json.dumps(said).encode() + b"\n")
        out.flush()


def _prepare(file: Path) -> None:
    """Import what reading the dump will need, so that this is not counted."""
    with contextlib.suppress(OSError, ImportError):
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as opened:
            start = opened.read(2**20)
        if start.startswith(b"PK") or b"torch" in start:
            import torch  # noqa: F401


def _limit(size: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime) + cpu_seconds(size)
    _set(resource.RLIMIT_CPU, seconds)
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb") as file:
        data = int(file.read().split()[5]) * resource.getpagesize()
        _set(resource.RLIMIT_DATA, data + memory_bytes(size))


def _set(kind: int, soft: int) -> None:
    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
