"""What a copy has to do: what is missing, what differs, what stays. Reads both places, writes nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from rolltape.codec.file import TAIL_GUESS
from rolltape.codec.seal import tail_size
from rolltape.copying.file_roles import Role, role_of
from rolltape.copying.merging import Merge, merged, whole_lines
from rolltape.errors import (
    ConfigError,
    CorruptFileError,
    MismatchError,
    StepMissingError,
)
from rolltape.key import Key, is_of_index, is_of_open_step
from rolltape.reader.dropped_steps import NAME as DROPPED
from rolltape.reader.dropped_steps import Dropped, parse_dropped
from rolltape.storage import Stat, Storage
from rolltape.storage.together import together
from rolltape.tape.manifest import Manifest, read_manifest
from rolltape.tape.opening import UNFINISHED_COPY, not_found
from rolltape.tape.place import strange_line


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two files of one name that say different things. Neither is taken for the better one."""

    file: str
    what: str


@dataclass(slots=True)
class Plan:
    """What is to be done so that the target has all of the source. Nothing is ever deleted there."""

    source: Storage
    target: Storage
    manifest: Manifest
    """The source's."""
    is_new: bool
    """Whether there is no tape at the target yet."""
    missing: list[Stat] = field(default_factory=list)
    """Files to copy, in the order of their roles and steps."""
    lines: dict[str, Merge] = field(default_factory=dict)
    """Lines to add, by file."""
    new_manifest: bool = False
    """Whether the source's ``tape.json`` is to take the place of the target's."""
    replaced: set[str] = field(default_factory=set)
    """Those of the missing that differ at the target, and are to be replaced there."""
    conflicts: list[Conflict] = field(default_factory=list)
    same: int = 0
    """Files that both have."""
    dropped: list[str] = field(default_factory=list)
    """Recordings that were dropped at the target on purpose, and stay so."""
    foreign: list[str] = field(default_factory=list)
    """Files at the source that are no part of a tape."""

    @property
    def bytes(self) -> int:
        """How much has to be copied."""
        return sum(stat.size for stat in self.missing)

    @property
    def added_lines(self) -> int:
        return sum(len(merge.missing) for merge in self.lines.values())


def plan_copy(source: Storage, target: Storage, *, rewrite: bool = False) -> Plan:
    """What is missing at the target. ``rewrite`` replaces there what differs, instead of naming it.

    Raises TapeNotFoundError if there is no tape at the source, MismatchError if the target has another one.
    """
    _check_apart(source, target)
    manifest = read_manifest(source)
    if manifest is None:
        raise not_found(source)
    theirs = read_manifest(target)
    mine = _files(source)
    there = _files(target)
    if theirs is None:
        _check_free(source, target, manifest, there)
    elif theirs.id != manifest.id:
        raise _another(target, f"the id {theirs.id[:8]}", manifest)
    plan = Plan(source, target, manifest, is_new=theirs is None)
    if theirs is not None:
        _plan_manifest(plan, manifest, theirs, rewrite=rewrite)
    _plan_files(plan, mine, there, rewrite=rewrite)
    for name in sorted(name for name in mine if role_of(name).is_lines):
        _plan_lines(plan, name, there, rewrite=rewrite)
    return plan


def _files(storage: Storage) -> dict[str, Stat]:
    return {stat.name: stat for stat in storage.everything()}


# -- which tape ----------------------------------------------------------------------------------------


def _check_apart(source: Storage, target: Storage) -> None:
    one, other = (f"{storage.location.rstrip('/')}/" for storage in (source, target))
    if one.startswith(other) or other.startswith(one):
        raise ConfigError(
            "a tape cannot be copied to itself, into itself or around itself",
            where=target.location,
            causes=[f"it comes from {source.location}"],
            hint="name another place",
        )


def _check_free(source: Storage, target: Storage, manifest: Manifest, there: Mapping[str, Stat]) -> None:
    """Whether the target can become a copy: it is empty, or a copy of the same tape that did not finish."""
    if UNFINISHED_COPY in there:
        begun = unfinished_copy(target)
        if begun != manifest.id:
            raise _another(target, f"an unfinished copy of the tape {(begun or '?')[:8]}", manifest)
    elif any(role_of(name).is_of_a_step for name in there):
        raise not_found(target)


def unfinished_copy(storage: Storage) -> str | None:
    """Which tape is being copied here; None if that cannot be read."""
    try:
        found = json.loads(bytes(storage.read(UNFINISHED_COPY)))["tape"]
    except (StepMissingError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def _another(target: Storage, has: str, manifest: Manifest) -> MismatchError:
    return MismatchError(
        "there is another tape at this place",
        where=target.location,
        causes=[f"it has {has}, and the tape to be copied {manifest.id[:8]}"],
        hint="name a place of its own for each tape",
    )


def _plan_manifest(plan: Plan, mine: Manifest, theirs: Manifest, *, rewrite: bool) -> None:
    if mine == theirs or _continues(theirs, mine):
        return
    if _continues(mine, theirs) or rewrite:
        plan.new_manifest = True
    else:
        plan.conflicts.append(Conflict("tape.json", "the two say different things about the run"))


def _continues(later: Manifest, earlier: Manifest) -> bool:
    """Whether one ``tape.json`` is what a run, an acceptance or a compaction made of the other."""
    fixed = ("id", "created", "baseline", "cut")
    return (
        all(getattr(later, name) == getattr(earlier, name) for name in fixed)
        and later.format >= earlier.format
        and set(earlier.sources) <= set(later.sources)
        and {earlier.digest, *earlier.earlier} <= {later.digest, *later.earlier}
    )


# -- which files ---------------------------------------------------------------------------------------


def _plan_files(plan: Plan, mine: Mapping[str, Stat], there: Mapping[str, Stat], *, rewrite: bool) -> None:
    whole = [stat for name, stat in mine.items() if role_of(name).is_of_a_step or role_of(name) is Role.NOTE]
    strange = (name for name in mine if role_of(name) is Role.FOREIGN and name != UNFINISHED_COPY)
    # A copy makes its own index; what has finished of an open step is for the run that is resumed here.
    plan.foreign += [name for name in strange if not is_of_index(name) and not is_of_open_step(name)]
    for stat in whole:
        if stat.wrong is not None:
            plan.conflicts.append(Conflict(stat.name, stat.wrong))
    sound = [stat for stat in whole if stat.wrong is None]
    both = [stat for stat in sound if stat.name in there]
    differing = {
        stat.name
        for stat, same in zip(
            both, together(lambda stat: _same(plan, stat, there[stat.name]), both), strict=True
        )
        if not same
    }
    plan.same = len(both) - len(differing)
    dropped = _dropped_there(plan, [stat.name for stat in sound if stat.name not in there])
    plan.dropped += sorted(dropped)
    for stat in sorted(sound, key=lambda stat: (role_of(stat.name), stat.name)):
        if stat.name in differing and not rewrite:
            plan.conflicts.append(Conflict(stat.name, "it is on both sides, and differs"))
        elif stat.name in differing or (stat.name not in there and stat.name not in dropped):
            plan.missing.append(stat)
    plan.replaced |= differing if rewrite else set()


def _same(plan: Plan, mine: Stat, theirs: Stat) -> bool:
    """Whether two files hold the same: the seal at the end of a recording has the checksums of all of it."""
    if theirs.wrong is not None or mine.size != theirs.size:
        return False
    name = mine.name
    ends = [storage.read_end(name, TAIL_GUESS)[1] for storage in (plan.source, plan.target)]
    if bytes(ends[0]) != bytes(ends[1]):
        return False
    if not name.endswith(".parquet"):
        return len(ends[0]) == mine.size or _ends(plan, name, mine.size)
    try:
        wanted = tail_size(memoryview(ends[0]))
    except CorruptFileError:
        wanted = mine.size
    return wanted <= len(ends[0]) or _ends(plan, name, min(wanted, mine.size))


def _ends(plan: Plan, name: str, length: int) -> bool:
    ends = [bytes(storage.read_end(name, length)[1]) for storage in (plan.source, plan.target)]
    return ends[0] == ends[1]


def _dropped_there(plan: Plan, names: Collection[str]) -> set[str]:
    """Which recordings were dropped at the target, and not at the source: they are not brought back."""
    mine, theirs = (_lines(storage, DROPPED) for storage in (plan.source, plan.target))
    dropped = [
        one for line in merged(DROPPED, theirs, mine).missing if (one := parse_dropped(plan.target, line))
    ]
    return {name for name in names if _holds(dropped, name)}


def _holds(dropped: Iterable[Dropped], name: str) -> bool:
    key = Key.parse(name)
    return key is not None and any(one.holds(key) for one in dropped)


def _plan_lines(plan: Plan, name: str, there: Mapping[str, Stat], *, rewrite: bool) -> None:
    every, theirs = _lines(plan.source, name), _lines(plan.target, name)
    mine = [line for line in every if strange_line(plan.source, name, line) is None]
    merge = replace(merged(name, mine, theirs), strange=len(every) - len(mine))
    if name == DROPPED:  # what is at the target has not been dropped there
        true = [
            line
            for line in merge.missing
            if (one := parse_dropped(plan.source, line)) and not _any(one, there)
        ]
        merge = replace(merge, missing=tuple(true))
    if merge.conflict is not None and rewrite:
        merge = replace(merged(name, mine, []), strange=merge.strange)
        plan.replaced.add(name)
    if merge.conflict is not None:
        plan.conflicts.append(Conflict(name, merge.conflict))
    elif merge.missing or merge.damaged or merge.strange:
        plan.lines[name] = merge
    else:
        plan.same += 1


def _any(dropped: Dropped, there: Iterable[str]) -> bool:
    return any(_holds([dropped], name) for name in there)


def _lines(storage: Storage, name: str) -> list[bytes]:
    try:
        return whole_lines(bytes(storage.read(name)))
    except StepMissingError:
        return []
