"""What the ranks of a run ask for in one call, and which samples each of them gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rolltape.index.sample_index import Sample

Told = tuple[Mapping[bytes, int], "str | None"]
"""How many samples a rank asks for by the digest of their prompt; or the recording that it replays."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks that make a call together.

    Where they can tell each other what they ask for, samples are dealt out in the order of ranks, as if one
    had asked for all. Where they cannot, each begins with its own share of the samples: they get different
    ones as long as none asks for more than that.
    """

    rank: int = 0
    world_size: int = 1
    told: tuple[Told, ...] | None = None
    """What each asks for, where they told each other."""

    @property
    def slots(self) -> list[str]:
        """The recordings that other ranks replay."""
        others = (one for at, one in enumerate(self.told or ()) if at != self.rank)
        return [slot for _, slot in others if slot is not None]

    def share(
        self, digest: bytes, free: Sequence[Sample], count: int
    ) -> tuple[list[Sample], list[Sample], int]:
        """The samples of a prompt for this rank, those for others, and how many lower ranks generate."""
        if self.told is None:
            start = self.rank * len(free) // self.world_size
            return [*free[start:], *free[:start]][:count], [], 0
        asks = [told.get(digest, 0) for told, _ in self.told]
        before = sum(asks[: self.rank])
        mine = list(free[before : before + count])
        return mine, [*free[:before], *free[before + count : sum(asks)]], max(0, before - len(free))

    def overlap(self, free: Sequence[Sample], count: int) -> bool:
        """Whether another rank may get the same: nobody told, and more than a share is asked for."""
        if self.told is not None or self.world_size == 1 or not free:
            return False
        start, end = (at * len(free) // self.world_size for at in (self.rank, self.rank + 1))
        return count > end - start
