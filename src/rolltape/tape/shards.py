"""Whether every rank's shard of a call is there: the one answer for replay, readers and checks.

A call of several ranks is complete if its commit says so. On tapes of older versions, which have none, it is
if all shards are there. A rank that goes on without making a call is not missing from it: one that has
recorded later steps of the stage, but not this second call; or other stages at later steps, and this never.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from rolltape.errors import RolltapeError, StepExistsError, StepMissingError
from rolltape.key import Key
from rolltape.policy import Action, Decision, Mode, Overwrite, Policy
from rolltape.storage import Storage
from rolltape.tape.commits import Commit, read_commit
from rolltape.tape.recording import Recording

MOST_NAMED = 8
"""Missing ranks that a message names."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A call that is not complete."""

    key: Key
    """Of the first rank that is missing; of rank 0 if none is."""
    missing: tuple[int, ...] = ()
    """The ranks whose shards are not there: the first few of them."""
    stale: tuple[int, ...] = ()
    """The ranks whose shards are not those that the commit speaks of."""

    def __str__(self) -> str:
        key, few = self.key, self.missing or self.stale
        named = ", ".join(map(str, few[:MOST_NAMED])) + (", …" if len(few) > MOST_NAMED else "")
        call = f" call {key.call}" if key.call else ""
        at = f"{key.split}/{key.stage} step {key.step}{call}"
        if not few:
            return (
                f"all {key.world_size} ranks are there at {at}, and no commit says that they belong together"
            )
        ranks = f"rank {named}" if len(few) == 1 else f"ranks {named}"
        one = "is" if len(few) == 1 else "are"
        if self.missing:
            return f"{ranks} of {key.world_size} {one} missing at {at}"
        return f"{ranks} of {key.world_size} {one} not what the step was completed with at {at}"

    @property
    def causes(self) -> list[str]:
        """What probably happened."""
        if self.missing:
            return ["that rank died, or is still writing it", "its file was deleted, or not copied"]
        return [
            "a run that recorded or rewrote the step died before its last rank was done, or goes on still"
        ]


def over_incomplete(decision: Decision, short: Shortfall, policy: Policy) -> Decision:
    """What happens at a step of which this rank's shard is there and others are not.

    It is not recorded, for every rank alike: where a rank whose shard is missing runs live and saves, one
    that has a shard runs live, too, and replaces it.
    """
    if decision.action is Action.RECORD:
        why = f"step {decision.step} is incomplete on the tape ({short})"
        keeps = policy.mode is Mode.RECORD or decision.step not in policy.steps
        if keeps and policy.overwrite is Overwrite.ERROR:
            return replace(
                decision,
                action=Action.ERROR,
                reason=f"{why}, but this rank's shard is there already",
                error=StepExistsError,
                hint="set overwrite=keep or mode=auto: an incomplete step is recorded again by all ranks",
            )
        return replace(decision, action=Action.REWRITE, reason=f"{why}, so all ranks record it again")
    if decision.error is StepMissingError:
        return replace(
            decision,
            reason=f"step {decision.step} is incomplete on the tape: {short}",
            hint=f"record it again (mode=auto does, on all ranks); {decision.hint}",
        )
    return decision


Elsewhere = Callable[[int], int]
"""The last step at which a rank has recorded other stages of the split; -1 for none."""


def shortfalls(
    keys: Iterable[Key],
    committed: Collection[str],
    *,
    commit: Callable[[Key], Commit | None],
    attempt: Callable[[Key], str | None],
    elsewhere: Elsewhere,
) -> Iterator[Shortfall]:
    """The calls of one stage that are not complete, given all its recordings and the names of its commits.

    Pure. Files are asked for only where names cannot tell: ``commit`` where a shard is missing all the same,
    and ``attempt`` where all shards are there without one.
    """
    calls: dict[Key, set[int]] = {}
    last: dict[tuple[int, int], int] = {}
    first: dict[int, int] = {}
    for key in keys:
        if key.is_shard and not key.inputs:
            calls.setdefault(replace(key, rank=0), set()).add(key.rank)
            world = key.world_size
            last[key.rank, world] = max(last.get((key.rank, world), -1), key.step)
            first[world] = min(first.get(world, key.step), key.step)
    unsure: list[Key] = []
    for key, ranks in calls.items():
        gone = (rank for rank in range(key.world_size) if rank not in ranks)
        whole = len(ranks) == key.world_size
        if key.commit in committed:
            if not whole and (said := commit(key)) is not None:
                gone = (rank for rank in sorted(said.ranks) if rank not in ranks)
        elif whole:
            unsure.append(key)
        else:
            start, begun = calls.get(replace(key, call=0), set()), first[key.world_size]
            gone = (rank for rank in gone if not _went_on(key, rank, rank in start, last, begun, elsewhere))
        if missing := tuple(islice(gone, MOST_NAMED + 1)):
            yield Shortfall(replace(key, rank=missing[0]), missing)
    yield from map(Shortfall, _without_commit(unsure, attempt))


def _went_on(
    key: Key, rank: int, began: bool, last: dict[tuple[int, int], int], first: int, elsewhere: Elsewhere
) -> bool:
    """Whether a rank is known to have passed this call without making it."""
    if key.call:
        return began and last.get((rank, key.world_size), -1) > key.step
    return (rank, key.world_size) not in last and elsewhere(rank) > first


def _without_commit(unsure: list[Key], attempt: Callable[[Key], str | None]) -> Iterator[Key]:
    """Those of the full calls without a commit that should have one."""
    unsure.sort(key=lambda key: (key.step, str(key.call)))
    if len(unsure) > 2 and not (attempt(unsure[0]) or attempt(unsure[-1])):
        return  # all of them are older than commits: not each is opened
    yield from (key for key in unsure if attempt(key))


def shortfall_of(storage: Storage, key: Key) -> Shortfall | None:
    """What a call lacks; None if it is complete. One look if it is; lists only where a shard is missing."""
    if not key.is_shard or storage.exists(key.commit):
        return None
    if all(storage.exists(shard.path) for shard in key.shards()):
        return Shortfall(replace(key, rank=0)) if attempt_of(storage, key) else None
    found = list_shortfalls(storage, key.split, key.stage)
    return next((one for one in found if replace(one.key, rank=0) == replace(key, rank=0)), None)


def list_shortfalls(storage: Storage, split: str, stage: str) -> list[Shortfall]:
    """The calls of a stage that are not complete. Lists its folder, and others where that may excuse one."""
    keys, commits = named(storage.names(f"{split}/{stage}/"))
    return list(judged(storage, split, stage, keys, commits))


def named(names: Iterable[str]) -> tuple[list[Key], set[str]]:
    """The recordings among the files of a folder, and the commits."""
    keys: list[Key] = []
    commits: set[str] = set()
    for name in names:
        if (key := Key.parse(name)) is not None:
            keys += [] if key.inputs else [key]
        elif name.endswith(".commit") and Key.parse_commit(name) is not None:
            commits.add(name)
    return keys, commits


def judged(
    storage: Storage, split: str, stage: str, keys: Iterable[Key], commits: Collection[str]
) -> Iterator[Shortfall]:
    """The calls that are not complete, of recordings and commits that were listed before."""
    seen: dict[int, int] | None = None

    def elsewhere(rank: int) -> int:
        nonlocal seen
        if seen is None:
            seen = {}
            for folder in storage.folders(f"{split}/"):
                if folder != f"{split}/{stage}/":
                    for key in named(storage.names(folder))[0]:
                        seen[key.rank] = max(seen.get(key.rank, -1), key.step)
        return seen.get(rank, -1)

    return shortfalls(
        keys,
        commits,
        commit=lambda key: _readable(storage, key),
        attempt=lambda key: attempt_of(storage, key),
        elsewhere=elsewhere,
    )


def stale_shards(storage: Storage, recordings: Collection[Recording]) -> Shortfall | None:
    """The first shard that is there and is not the one its commit speaks of: it is being rewritten, say."""
    commits: dict[Key, Commit | None] = {}
    for recording in recordings:
        key = recording.key
        if not key.is_shard:
            continue
        call = replace(key, rank=0, inputs=False)
        if call not in commits:
            commits[call] = read_commit(storage, call)
        commit = commits[call]
        if commit is not None and not commit.holds(key.rank, recording.about.attempt):
            return Shortfall(replace(key, inputs=False), stale=(key.rank,))
    return None


def attempt_of(storage: Storage, key: Key) -> str | None:
    """Which writing of a shard is there; None for one of an older version."""
    try:
        return Recording(storage, key).about.attempt
    except RolltapeError:  # a damaged file is told by whoever reads it
        return None


def _readable(storage: Storage, key: Key) -> Commit | None:
    try:
        return read_commit(storage, key)
    except RolltapeError:  # told by a check
        return None
