"""What is wrong with a tape: every file is read, every checksum compared, everything decoded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rolltape.errors import (
    CorruptFileError,
    MemoryLimitError,
    MisplacedFileError,
    MissingDependencyError,
    RolltapeError,
    StepMissingError,
    StorageError,
    UnknownAdapterError,
)
from rolltape.hooks import hook
from rolltape.key import Key, metrics_path
from rolltape.reader.dropped_steps import read_dropped
from rolltape.reader.listing import NOTES, is_name
from rolltape.spread import HERE, Spread
from rolltape.storage import SegmentedStorage, Stat, Storage
from rolltape.tape.checked_lines import check_line
from rolltape.tape.commits import read_commit
from rolltape.tape.manifest import NAME, read_manifest
from rolltape.tape.metrics import read_line
from rolltape.tape.opening import STALE_AFTER
from rolltape.tape.recording import Recording
from rolltape.tape.segments import check_segment
from rolltape.tape.shards import judged, named, stale_shards
from rolltape.tape.step_index import call_order


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    kind: str
    """``damaged``, ``missing``, ``incomplete``, ``misplaced``, ``inputs``, ``metrics``, ``segment``,
    ``foreign`` or ``leftover``.
    """
    file: str
    """Relative to the tape."""
    message: str
    columns: tuple[str, ...] = ()
    """The damaged columns, where they are known."""


@dataclass(slots=True)
class Report:
    """What a check of one tape found."""

    tape: str
    files: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    undecoded: list[str] = field(default_factory=list)
    """Files with values of classes that this process does not know: their checksums are right."""
    anonymous: int = 0
    """Older recordings, which do not say of which tape they are: only their place is checked."""
    leftovers: list[str] = field(default_factory=list)
    """Files that a killed process left half-written beside the recordings. No reader ever sees them."""
    in_progress: int = 0
    """Files that another process is writing now."""


Tick = Callable[[Stat], None]
"""Told of every file that is done."""


def inspect(storage: Storage, tick: Tick = lambda stat: None, spread: Spread = HERE) -> Report:
    """Check all of a tape."""
    report = Report(storage.location)
    listed = sorted(storage.everything(), key=lambda stat: stat.name)
    names = {stat.name for stat in listed}
    items = [_Listed(stat, _partner(stat.name) in names) for stat in listed]
    for item, seen in zip(items, spread.over(_LookAt(storage), items, [storage.location]), strict=True):
        report.files += 1
        report.bytes += item.stat.size
        report.findings += seen.findings
        report.undecoded += [item.stat.name] if seen.undecoded else []
        report.anonymous += seen.anonymous
        tick(item.stat)
    report.findings += missing_recordings(storage, names, spread)
    report.findings += incomplete_calls(storage, names)
    report.findings += _segments(storage)
    unfinished = storage.unfinished(STALE_AFTER)
    report.leftovers, report.in_progress = list(unfinished.stale), unfinished.live
    return report


@dataclass(frozen=True, slots=True)
class _Listed:
    stat: Stat
    has_partner: bool
    """Whether there is what belongs to it: the inputs of a result, the result of inputs."""


def _partner(name: str) -> str | None:
    """The inputs of a result, or the result of inputs; None for files that are no recordings."""
    key = Key.parse(name)
    return None if key is None else replace(key, inputs=not key.inputs).path


@dataclass(slots=True)
class Seen:
    """What a look at one file showed."""

    findings: list[Finding] = field(default_factory=list)
    undecoded: bool = False
    """Whether it has values of classes that this process does not know."""
    anonymous: bool = False
    """Whether it does not say of which tape it is."""


@dataclass(frozen=True, slots=True)
class _LookAt:
    """Looks at files of a tape, one after the other."""

    storage: Storage

    def __call__(self, items: Sequence[_Listed]) -> Iterator[Seen]:
        for item in items:
            name = item.stat.name
            if item.stat.wrong is None and (key := Key.parse(name)) is not None:
                yield look_at_recording(self.storage, key, has_partner=item.has_partner)
            else:
                yield Seen(list(_look_at_other(self.storage, item.stat)))


def _look_at_other(storage: Storage, stat: Stat) -> Iterator[Finding]:
    name = stat.name
    split = name.partition("/")[0]
    if stat.wrong is not None:
        yield Finding("foreign", name, stat.wrong)
    elif name == NAME:
        yield from _manifest(storage)
    elif is_name(split) and name == metrics_path(split):
        yield from _metrics(storage, name)
    elif (key := Key.parse_commit(name)) is not None:
        yield from _commit(storage, name, key)
    elif name not in NOTES:  # notes of the comparison, which reads them with care itself
        yield Finding("foreign", name, "no part of a tape has this name; Rolltape never reads it")


def missing_recordings(storage: Storage, names: Collection[str], spread: Spread = HERE) -> Iterator[Finding]:
    """Recordings that others were made after and that are gone, unless they were dropped on purpose."""
    dropped = read_dropped(storage)
    shards: dict[tuple[str, str, int], list[Key]] = {}
    for key in sorted(filter(None, map(Key.parse, names)), key=call_order):
        if not key.inputs:
            shards.setdefault((key.split, key.stage, key.rank), []).append(key)
    every = [key for keys in shards.values() for key in keys]
    before = spread.over(_Before(storage), every, [storage.location])
    for keys in shards.values():
        there = {key.step for key in keys}
        for key in keys:
            gone = _gone_before(key, next(before), there)
            if gone is not None and not any(one.holds(gone) for one in dropped):
                there.add(gone.step)  # said once
                what = f"step {gone.step} of {key.split}/{key.stage}"
                yield Finding("missing", gone.path, f"{what} is gone: step {key.step} was recorded after it")
            if type(key.call) is int and key.call and replace(key, call=key.call - 1).path not in names:
                gone = replace(key, call=key.call - 1)
                text = f"call {gone.call} of step {key.step} is gone, and call {key.call} is there"
                yield Finding("missing", gone.path, text)


def incomplete_calls(storage: Storage, names: Collection[str]) -> Iterator[Finding]:
    """Calls that some ranks have recorded and others not."""
    dropped = read_dropped(storage)
    stages: dict[tuple[str, str], list[Key]] = {}
    keys, commits = named(names)
    for key in keys:
        if key.is_shard:
            stages.setdefault((key.split, key.stage), []).append(key)
    for (split, stage), shards in sorted(stages.items()):
        short = judged(storage, split, stage, shards, commits)
        for one in sorted(short, key=lambda one: call_order(one.key)):
            if not any(each.holds(one.key) for each in dropped):
                yield Finding("incomplete", one.key.path, str(one))


def _commit(storage: Storage, name: str, key: Key) -> Iterator[Finding]:
    """What is wrong with a commit, or with the shards it speaks of."""
    void = name == key.void
    there = [shard for shard in key.shards() if storage.exists(shard.path)]
    try:
        commit = read_commit(storage, key, void=void)
        stale = stale_shards(storage, [Recording(storage, shard) for shard in there])
    except CorruptFileError as error:
        if str(error.where).endswith(name):
            yield Finding("damaged", name, error.what)
        return  # a damaged shard is found by itself
    except RolltapeError:
        return
    if stale is not None and not void:
        yield Finding("incomplete", stale.key.path, str(stale))
    elif commit is not None and not there:
        yield Finding("leftover", name, "of shards that are not there; prune --steps removes it")


@dataclass(frozen=True, slots=True)
class _Before:
    """Reads which step each recording was made after; None where it does not say, or may be gone."""

    storage: Storage

    def __call__(self, keys: Sequence[Key]) -> Iterator[int | None]:
        for key in keys:
            try:
                about = Recording(self.storage, key).about
            except RolltapeError:  # a damaged one has been found
                yield None
            else:
                yield None if "max_keep" in about else about.previous


def _gone_before(key: Key, before: int | None, there: Collection[int]) -> Key | None:
    """The recording that this one was made after, if it is gone from the middle of the tape."""
    if before is None or before in there or before < min(there):
        return None
    return replace(key, step=before, call=key.call if isinstance(key.call, str) else 0)


def _segments(storage: Storage) -> Iterator[Finding]:
    """Segments whose end other tools cannot rely on. Their recordings have been looked at one by one."""
    if not isinstance(storage, SegmentedStorage):
        return
    for name in storage.index().segments:
        try:
            check_segment(storage, name)
        except RolltapeError as error:
            yield Finding("segment", name, f"as one Parquet file it cannot be read: {error.what}")


def _manifest(storage: Storage) -> Iterator[Finding]:
    try:
        read_manifest(storage)
    except RolltapeError as error:
        yield Finding("damaged", NAME, error.what)


def _metrics(storage: Storage, name: str) -> Iterator[Finding]:
    try:
        lines = bytes(storage.read(name)).split(b"\n")
    except (StorageError, MemoryLimitError) as error:
        yield Finding("metrics", name, error.what)
        return
    for number, line in enumerate(lines, 1):
        wrong = wrong_with(line) if line else None
        if wrong is not None:
            yield Finding("metrics", name, f"line {number} {wrong}")


def wrong_with(line: bytes) -> str | None:
    """What is wrong with a line of metrics."""
    try:
        body = check_line(line, "")
    except CorruptFileError:
        return "does not match its checksum"
    if body is None:
        return "was cut short: its process died while writing it"
    try:
        read_line(body, "")
    except CorruptFileError as error:
        return f"cannot be read: {error.what}"
    return None


def look_at_recording(storage: Storage, key: Key, *, has_partner: bool) -> Seen:
    """What is wrong with one recording; ``has_partner``: whether its inputs, or their result, are there."""
    seen = Seen()
    seen.findings += _wrong_with_recording(Recording(storage, key), has_partner, seen)
    return seen


def _wrong_with_recording(recording: Recording, has_partner: bool, seen: Seen) -> Iterator[Finding]:
    key = recording.key
    try:
        recording.verify()
    except (UnknownAdapterError, MissingDependencyError):  # checksums come first, so these are right
        seen.undecoded = True
    except MisplacedFileError as error:
        yield Finding("misplaced", key.path, error.what)
        return
    except CorruptFileError as error:
        columns = tuple(_damaged_columns(recording))
        several = f"columns {', '.join(columns)} do not match their checksums"
        yield Finding("damaged", key.path, several if len(columns) > 1 else error.what, columns)
        return
    except StepMissingError:  # deleted since it was listed
        return
    except Exception as error:  # it may not be read, or has right checksums and yet cannot be decoded
        why = error.what if isinstance(error, RolltapeError) else f"{type(error).__name__}: {error}"
        yield Finding("damaged", key.path, f"it cannot be read: {why}")
        return
    seen.anonymous = recording.about.tape is None
    yield from _inputs(recording, has_partner)
    if recording.about.circumstances:
        for row, column in hook("differing calls")(recording):  # what knows about calls lies above
            text = f"{column} of call {row} is not what its recorded bytes say"
            yield Finding("damaged", key.path, text, (column,))


def _damaged_columns(recording: Recording) -> Iterator[str]:
    """Which columns of a damaged file cannot be read; none where already its footer cannot."""
    try:
        file = recording.file
        names = list(file.stored_columns)
    except RolltapeError:
        return
    for name in names:
        try:
            file.columns([name])
        except CorruptFileError:
            yield name
        except RolltapeError:
            continue


def _inputs(recording: Recording, has_partner: bool) -> Iterator[Finding]:
    """Whether a recording has its inputs, and inputs their recording."""
    key = recording.key
    if not key.inputs and recording.about.inputs is not None and not has_partner:
        yield Finding("inputs", key.path, "its inputs were recorded, and their file is missing")
    if key.inputs and not has_partner:
        yield Finding(
            "leftover", key.path, "inputs of a result that is not there; prune --steps removes them"
        )
