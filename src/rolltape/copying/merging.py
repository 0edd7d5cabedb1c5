"""What of one file of lines is missing in another, and where the two contradict each other. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from rolltape.reader.integrity import wrong_with
from rolltape.tape.current_run import NAME as RUNS


@dataclass(frozen=True, slots=True)
class Merge:
    """How lines get from one file into another."""

    missing: tuple[bytes, ...] = ()
    """The lines to add, in their order."""
    conflict: str | None = None
    """Why they cannot be added."""
    damaged: int = 0
    """Lines that are left behind: they do not match their checksum."""
    strange: int = 0
    """Lines that are left behind: they are of another tape or split."""
    there: tuple[bytes, ...] = ()
    """The lines that they are added to."""


def whole_lines(text: bytes) -> list[bytes]:
    """The lines of a file. One without an end is still being written, or never will be."""
    return [line for line in text.split(b"\n")[:-1] if line]


def merged(name: str, mine: Sequence[bytes], theirs: Sequence[bytes]) -> Merge:
    """What to add to ``theirs``, so that it has all of ``mine``; nothing twice."""
    if name == RUNS:
        return _in_order(mine, theirs)
    if name.endswith("metrics.jsonl"):
        sound = [line for line in mine if wrong_with(line) is None]
        return replace(_added(sound, theirs, _logged), damaged=len(mine) - len(sound))
    return _added(mine, theirs, None)


def still_missing(merge: Merge, now: Sequence[bytes]) -> tuple[bytes, ...]:
    """The lines to add to a file that has grown since: not those that have come from elsewhere."""
    since = Counter(now)
    since.subtract(merge.there)
    missing = []
    for line in merge.missing:
        if since[line] > 0:
            since[line] -= 1
        else:
            missing.append(line)
    return tuple(missing)


def _in_order(mine: Sequence[bytes], theirs: Sequence[bytes]) -> Merge:
    """For lines whose meaning is in their order: one must continue the other."""
    shared = min(len(mine), len(theirs))
    if list(mine[:shared]) != list(theirs[:shared]):
        return Merge(conflict="each was rewritten by a run that the other does not know")
    return Merge(tuple(mine[shared:]), there=tuple(theirs))


def _added(
    mine: Sequence[bytes], theirs: Sequence[bytes], about: Callable[[bytes], Hashable] | None
) -> Merge:
    there = Counter(theirs)
    missing = []
    for line in mine:
        if there[line]:
            there[line] -= 1
        else:
            missing.append(line)
    if about is not None:
        only_there = {about(line) for line in there.elements() if wrong_with(line) is None}
        both = [found for line in missing if (found := about(line)) in only_there]
        if both:
            steps = sorted({str(found[0]) for found in both if isinstance(found, tuple)}, key=int)
            several = "steps" if len(steps) > 1 else "step"
            return Merge(conflict=f"the metrics of {several} {', '.join(steps[:5])} differ")
    return Merge(tuple(missing), there=tuple(theirs))


def _logged(line: bytes) -> tuple[int, int, str]:
    """Of which step, rank and run a sound line is."""
    node = json.loads(line)
    return node["step"], node.get("rank", 0), node.get("run", "")
