"""A step that was recorded by some number of ranks, for a run that has another: by samples, or not at all.

The samples of all shards are taken in the order of the ranks, and each rank of this run gets an equal,
contiguous part of them: of n samples, rank r of w gets those from r·n/w on. Bit for bit what was recorded, or
an error that names what cannot be: nothing is made up, or taken from just one of the shards.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from rolltape.batch.tree import Dismantled, Tree
from rolltape.codec.file import Change, RecordingFile, decoding
from rolltape.codec.header import About
from rolltape.codec.joining import check_alike, columns_aside, join, set_aside, split_group
from rolltape.errors import BatchError, MismatchError
from rolltape.key import Key
from rolltape.storage import Storage
from rolltape.tape.recording import Recording
from rolltape.tape.shards import stale_shards

log = logging.getLogger("rolltape")


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank of this run gets."""

    value: Any
    about: About
    """What all shards say; without what each says of itself alone."""
    dtypes: dict[str, str]
    size: int
    """Bytes on disk of all shards."""
    digests: tuple[tuple[str, str], ...]
    """The recordings it is made of, and what stands for each."""
    cut: str | None
    """A group of samples that is divided between two ranks, and was not when it was recorded."""
    counts: tuple[str, ...]
    """Values that may count the samples of a shard: they are as they were recorded."""


def part_bounds(sizes: Sequence[int], rank: int, world_size: int) -> list[tuple[int, int]]:
    """Which samples of each shard a rank gets; a ``BatchError`` where the parts would not be equal.

    >>> part_bounds([3, 3], 1, 3)
    [(2, 3), (0, 1)]
    >>> part_bounds([2, 2], 1, 1 + 1)
    [(0, 0), (0, 2)]
    """
    total = sum(sizes)
    if total % world_size:
        raise BatchError(f"{total} samples cannot be divided equally among {world_size} ranks")
    if 0 in sizes:
        raise BatchError(f"rank {list(sizes).index(0)} recorded no samples, so that its columns are unknown")
    start = total // world_size * rank
    stop = start + total // world_size
    bounds = []
    for end, size in zip(accumulate(sizes), sizes, strict=True):
        low, high = (min(max(at - (end - size), 0), size) for at in (start, stop))
        bounds.append((low, high) if low < high else (0, 0))
    return bounds


def reshard(
    storage: Storage, key: Key, world_size: int, *, random: bool = False, change: Change | None = None
) -> Part:
    """The part of ``key``'s rank of what ``world_size`` ranks recorded.

    ``random`` asks for the random state that the live call left behind, which is each rank's own.
    """
    shards = list(replace(key, rank=0, world_size=world_size).shards())
    recordings = [Recording(storage, shard) for shard in shards]
    try:
        return _part(storage, recordings, key, random, change)
    except BatchError as error:
        inputs = "the inputs of " if key.inputs else ""
        raise MismatchError(
            f"{inputs}step {key.step} of {key.split}/{key.stage} cannot be re-sharded from {world_size} to "
            f"{key.world_size} ranks: {error.what}",
            where=f"{storage.location}/{shards[0].path}",
            hint=error.hint or f"replay with world_size={world_size}, or record with {key.world_size} ranks",
        ) from None


def _part(
    storage: Storage, recordings: list[Recording], key: Key, random: bool, change: Change | None
) -> Part:
    files = [recording.file for recording in recordings]
    if (stale := stale_shards(storage, recordings)) is not None:
        raise BatchError(str(stale))
    sizes = [file.samples for file in files]
    bounds = part_bounds(sizes, key.rank, key.world_size)
    for rank in range(key.world_size):  # all ranks are refused, or none
        _check_part(files, part_bounds(sizes, rank, key.world_size))
    about = _common([file.about for file in files], random)
    pieces = [_piece(file, *bound) for file, bound in zip(files, bounds, strict=True)]
    joined = join(pieces)
    if change is not None:
        change(joined.columns, joined.wholes)
    with decoding():
        value = Tree(joined.tree).build(joined.columns, joined.wholes)
    counts = () if joined.samples in sizes else _counts(files)
    return Part(
        value,
        about,
        files[0].dtypes,
        sum(recording.size for recording in recordings),
        tuple((one.key.path, file.digest) for one, file in zip(recordings, files, strict=True)),
        _divided(files, bounds),
        counts,
    )


def _piece(file: RecordingFile, start: int, stop: int) -> Dismantled:
    """Some samples of a shard, taken apart; of one that has no part in it, what belongs to no sample."""
    marked = _node(file)
    kept = columns_aside(marked)
    columns = file.columns([name for name in file.stored_columns if name not in kept], start, stop)
    columns |= file.columns(sorted(kept))
    wholes = {name: file.whole(name) for name in file.stored_wholes}
    return Tree(marked).cut(file.samples, range(start, stop)).taken_apart(stop - start, columns, wholes)


def _check_part(files: Sequence[RecordingFile], bounds: Sequence[tuple[int, int]]) -> None:
    """Refuse a part, of whichever rank, whose samples lie differently in its shards; by headers alone."""
    taken = [(file, *bound) for file, bound in zip(files, bounds, strict=True) if bound[0] < bound[1]]
    for file, start, stop in taken:
        if group := split_group(_node(file), start, stop):
            raise BatchError(f"{group} would be taken apart")
    check_alike([(_node(file), file.stored_columns) for file, _, _ in taken])


def _node(file: RecordingFile) -> Any:
    return set_aside(file.tree.taken_apart(0, {}, {}).tree)


def _common(abouts: Sequence[About], random: bool) -> About:
    """What all shards say of themselves; refused where a rank would have to choose between answers."""
    first = abouts[0]
    if any(about.inside != first.inside for about in abouts):
        raise BatchError("the ranks made different calls of other stages inside this one")
    if any(about.fingerprint != first.fingerprint for about in abouts):
        raise BatchError("the ranks recorded it under different fingerprints")
    if random and any(about.random != first.random for about in abouts):
        raise BatchError(
            "each rank recorded a random state of its own, and none of them is this rank's",
            hint="set random_state=False: what is random behind the stage is then this run's own",
        )
    node = {name: value for name, value in first.items() if name not in ("arguments", "inputs", "attempt")}
    return About(node | {"live_seconds": max(about.live_seconds or 0.0 for about in abouts)})


def _divided(files: Sequence[RecordingFile], bounds: Sequence[tuple[int, int]]) -> str | None:
    """The uid of a group of which this part begins or ends in the middle, inside a shard."""
    for file, (start, stop) in zip(files, bounds, strict=True):
        for at in (start, stop):
            if start < stop and 0 < at < file.samples:
                (before, after), _ = file.identity(at - 1, at + 1)
                if before and before == after:
                    return before
    return None


def _counts(files: Sequence[RecordingFile]) -> tuple[str, ...]:
    """Whole numbers beside the samples that are, in every shard, as many as it has samples."""
    found: set[str] | None = None
    for file in files:
        named = {
            path for path, value in file.tree.leaves() if type(value) is int and value == file.samples > 1
        }
        found = named if found is None else found & named
    return tuple(sorted(found or ()))
