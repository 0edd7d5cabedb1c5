"""What a tape did, for people, at the end."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Summary:
    """What happened to a tape since it was opened.

    >>> print(Summary(recorded=3, bytes_written=10_400_000, lost=("train/rollout/step_000007.parquet",)))
    3 recorded (10.4 MB), 1 LOST
    """

    recorded: int = 0
    """Recordings written."""
    replayed: int = 0
    """Recordings returned in place of a live call, substitutes included."""
    substituted: int = 0
    """Replays of another step than the one asked for."""
    by_content: int = 0
    """Samples answered by the content of their prompts, from wherever they were recorded: no replays."""
    generated: int = 0
    """Samples generated because no recording answered, where others of the same call were answered."""
    resumed: tuple[tuple[int, int, int], ...] = ()
    """Calls that a killed run had begun: the step, the samples not generated again, and those of the call."""
    live: int = 0
    """Live calls whose result was not to be recorded."""
    missing: int = 0
    """Calls that were looked for on the tape, were not there, and were not recorded then either."""
    kept: int = 0
    """Results not saved because another process had recorded that step meanwhile."""
    dropped: int = 0
    """Old steps deleted, as ``max_keep`` asks."""
    logged: int = 0
    """Lines of metrics written: one for each step that logged some."""
    never_played: tuple[str, ...] = ()
    """Recordings of the stages replayed here that nobody asked for."""
    lost: tuple[str, ...] = ()
    """Files that could not be written."""
    waiting: tuple[str, ...] = ()
    """Files that are not in the object store yet; they are safe in the spool of this machine."""
    bytes_written: int = 0
    """Bytes of the recordings written, inputs included."""
    bytes_read: int = 0
    """Bytes of the recordings replayed."""
    seconds_live: float = 0.0
    """Time spent in live calls."""
    seconds_saved: float = 0.0
    """What the replayed calls took when they were recorded, less the time it took to replay them."""
    seconds_waited: float = 0.0
    """How long the trainer waited for recordings to be read."""
    seconds_open: float = field(default=0.0, compare=False)
    """How long the tape was open."""

    def __str__(self) -> str:
        parts = [f"{self.recorded} recorded ({amount(self.bytes_written)})"] if self.recorded else []
        if self.replayed:
            waited = f"waited {self.seconds_waited:.1f} s of {self.seconds_open:.0f} s"
            parts.append(f"{self.replayed} replayed ({self.seconds_saved:.1f} s saved, {waited})")
        if 0 < len(self.resumed) <= 3:
            parts += [
                f"resumed {done} of {total} samples of step {step}" for step, done, total in self.resumed
            ]
        elif self.resumed:
            done, total = (sum(one[at] for one in self.resumed) for at in (1, 2))
            parts.append(f"resumed {done} of {total} samples of {len(self.resumed)} calls")
        counts = {"samples by content": self.by_content, "samples generated": self.generated}
        counts |= {"substituted": self.substituted, "live": self.live, "missing": self.missing}
        counts |= {"kept": self.kept, "dropped": self.dropped, "never played": len(self.never_played)}
        counts |= {"NOT UP YET": len(self.waiting), "LOST": len(self.lost)}
        parts += [f"{count} {what}" for what, count in counts.items() if count]
        if not parts and self.logged:
            return f"metrics of {self.logged} {'step' if self.logged == 1 else 'steps'}, no recordings"
        return ", ".join(parts) or "nothing recorded, nothing replayed"


class Tally:
    """Counts what a tape does, from any thread."""

    def __init__(self) -> None:
        self._counts: dict[str, float] = {}
        self._lost: list[str] = []
        self._resumed: list[tuple[int, int, int]] = []
        self._lock = threading.Lock()
        self._opened = time.monotonic()

    def add(self, **counts: float) -> None:
        """Add to fields of the summary."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] = self._counts.get(name, 0) + count

    def lose(self, name: str) -> None:
        """Note a file that could not be written."""
        with self._lock:
            self._lost.append(name)

    def resume(self, step: int, done: int, total: int) -> None:
        """Note a call of which a killed run had finished some samples."""
        with self._lock:
            self._resumed.append((step, done, total))

    def summary(self, never_played: tuple[str, ...] = (), waiting: tuple[str, ...] = ()) -> Summary:
        """Everything counted so far."""
        with self._lock:
            counts: dict[str, Any] = self._counts
            return Summary(
                **counts,
                never_played=never_played,
                lost=tuple(self._lost),
                resumed=tuple(self._resumed),
                waiting=waiting,
                seconds_open=time.monotonic() - self._opened,
            )


def amount(nbytes: float) -> str:
    """Bytes for people.

    >>> amount(950), amount(10_400_000)
    ('950 B', '10.4 MB')
    """
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    for unit in ("kB", "MB", "GB"):
        nbytes /= 1000
        if nbytes < 1000:
            return f"{nbytes:.1f} {unit}"
    return f"{nbytes / 1000:.1f} TB"
