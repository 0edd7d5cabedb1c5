"""How long a busy machine let a process wait: time in which it could do nothing."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path


class Starving:
    """How long the machine let a process wait for a processor: the thread that waited longest."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}/task")
        self._samples: list[tuple[float, dict[str, float]]] = []

    def sample(self) -> None:
        waited = {}
        for thread in self._folder.glob("*/schedstat"):
            with contextlib.suppress(OSError):
                waited[thread.parent.name] = int(thread.read_text().split()[1]) / 1e9
        self._samples.append((time.monotonic(), waited))

    def since(self, moment: float) -> float:
        before = next((waited for when, waited in reversed(self._samples) if when <= moment), {})
        last = self._samples[-1][1]
        return max((last[thread] - before.get(thread, 0.0) for thread in last), default=0.0)
