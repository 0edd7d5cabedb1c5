"""What a tape did, for people, at the end."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Summary:
    """What happened to a tape between opening and closing."""

    recorded: int = 0
    """Recordings written."""
    replayed: int = 0
    """Recordings returned in place of a live call, substitutes included."""
    substituted: int = 0
    """Replays of another step than the one asked for."""
    live: int = 0
    """Live calls whose result was not recorded."""
    missing: int = 0
    """Steps asked for that were not on the tape."""
    kept: int = 0
    """Results not saved because another process had recorded that step meanwhile."""
    never_played: list[str] = field(default_factory=list)
    """Recordings of the stages replayed here that nobody asked for."""
    bytes_written: int = 0
    bytes_read: int = 0
    seconds_live: float = 0.0
    """Time spent in live calls."""
    seconds_saved: float = 0.0
    """What the replayed calls took when they were recorded, less the time it took to replay them."""
    lost: list[str] = field(default_factory=list)
    """Recordings that failed and were lost (``on_error: warn``)."""

    def __str__(self) -> str:
        parts = [f"{self.recorded} recorded ({amount(self.bytes_written)})" if self.recorded else ""]
        if self.replayed:
            parts.append(f"{self.replayed} replayed ({self.seconds_saved:.1f} s saved)")
        counts = {"substituted": self.substituted, "live": self.live, "missing": self.missing}
        counts |= {"kept": self.kept, "never played": len(self.never_played), "LOST": len(self.lost)}
        parts += [f"{count} {what}" for what, count in counts.items() if count]
        return ", ".join(part for part in parts if part) or "nothing recorded, nothing replayed"


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
