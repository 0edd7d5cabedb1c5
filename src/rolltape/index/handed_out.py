"""Which samples were handed out in one step: who asks for a prompt again gets others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rolltape.index.sample_index import Sample


@dataclass(frozen=True, slots=True)
class Taken:
    """What one call was given, or is about to make."""

    samples: frozenset[tuple[str, int]] = frozenset()
    """Samples of recordings: the file, and the row there."""
    call: str | None = None
    """A recording of which all samples are its own."""
    numbers: Mapping[bytes, int] = field(default_factory=dict)
    """The number that the next sample of each prompt would have after it."""


class HandedOut:
    """What the calls of one step were given."""

    def __init__(self) -> None:
        self._samples: set[tuple[str, int]] = set()
        self._calls: set[str] = set()
        self._numbers: dict[bytes, list[int]] = {}

    def has(self, sample: Sample) -> bool:
        """Whether a sample was handed out."""
        return sample.path in self._calls or (sample.path, sample.row) in self._samples

    def upcoming(self, content: bytes) -> int:
        """The number of the next sample of a prompt, as far as calls know that are not over yet."""
        return max(self._numbers.get(content, ()), default=0)

    def take(self, taken: Taken) -> None:
        """Note what a call is given."""
        self._samples |= taken.samples
        if taken.call is not None:
            self._calls.add(taken.call)
        for content, number in taken.numbers.items():
            self._numbers.setdefault(content, []).append(number)

    def give_back(self, taken: Taken) -> None:
        """A call has failed: what it was given may be handed out again."""
        self._samples -= taken.samples
        if taken.call is not None:
            self._calls.discard(taken.call)
        for content, number in taken.numbers.items():
            self._numbers[content].remove(number)
