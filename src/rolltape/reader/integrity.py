"""What is wrong with a tape: every file is read, every checksum compared, everything decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
from rolltape.key import Key, is_of_index, is_of_open_step, metrics_path
from rolltape.reader.acceptances import NAME as ACCEPTED
from rolltape.reader.acceptances import acceptances
from rolltape.reader.dropped_steps import read_dropped
from rolltape.reader.listing import NOTES, is_name
from rolltape.reader.wording import counted
from rolltape.spread import HERE, Spread
from rolltape.storage import SegmentedStorage, Stat, Storage
from rolltape.tape.checked_lines import check_line, lines_of
from rolltape.tape.commits import read_commit
from rolltape.tape.current_run import NAME as RUNS
from rolltape.tape.current_run import read_lines
from rolltape.tape.manifest import NAME, read_manifest
from rolltape.tape.metrics import read_line
from rolltape.tape.open_samples import OpenFile, open_calls, read_open_file
from rolltape.tape.opening import STALE_AFTER
from rolltape.tape.place import as_node, split_of, strange_note
from rolltape.tape.recording import Recording
from rolltape.tape.replayed import NAME as REPLAYED
from rolltape.tape.replayed import read_replayed
from rolltape.tape.segments import check_segment
from rolltape.tape.shards import judged, named, stale_shards
from rolltape.tape.step_index import call_order

MOST_LINES = 20
"""Damaged lines of one file that are named one by one."""


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
    unsigned: list[str] = field(default_factory=list)
    """Older metrics and notes, which do not say of which tape or split they are: no more can be known."""
    leftovers: list[str] = field(default_factory=list)
    """Files that a killed process left half-written beside the recordings. No reader ever sees them."""
    in_progress: int = 0
    """Files that another process is writing now."""
    open: list[str] = field(default_factory=list)
    """Finished samples of steps that are not recorded: for the run that is resumed."""


Tick = Callable[[Stat], None]
"""Told of every file that is done."""


def inspect(storage: Storage, tick: Tick = lambda stat: None, spread: Spread = HERE) -> Report:
    """Check all of a tape."""
    report = Report(storage.location)
    listed = sorted(storage.everything(), key=lambda stat: stat.name)
    names = {stat.name for stat in listed}
    shards = _shards(names)
    items = [_Listed(stat, _partner(stat.name) in names, shards.get(stat.name, ())) for stat in listed]
    for item, seen in zip(items, spread.over(_LookAt(storage), items, [storage.location]), strict=True):
        report.files += 1
        report.bytes += item.stat.size
        report.findings += seen.findings
        report.undecoded += [item.stat.name] if seen.undecoded else []
        report.anonymous += seen.anonymous
        report.unsigned += [item.stat.name] if seen.unsigned else []
        tick(item.stat)
    report.findings += missing_recordings(storage, names, spread)
    report.findings += incomplete_calls(storage, names)
    report.findings += _segments(storage)
    unfinished = storage.unfinished(STALE_AFTER)
    report.leftovers, report.in_progress = list(unfinished.stale), unfinished.live
    report.open = [str(one) for one in open_calls(storage) if not one.recorded]
    return report


@dataclass(frozen=True, slots=True)
class _Listed:
    stat: Stat
    has_partner: bool
    """Whether there is what belongs to it: the inputs of a result, the result of inputs."""
    shards: Sequence[Key] = ()
    """Those that there are of the call, if it is a commit."""


def _shards(names: Iterable[str]) -> dict[str, list[Key]]:
    """The shards that there are of each call, by the names of its commit and of its void one."""
    found: dict[str, list[Key]] = {}
    for key in named(sorted(names))[0]:
        if key.is_shard:
            for name in (key.commit, key.void):
                found.setdefault(name, []).append(key)
    return found


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
    """Whether it is a recording that does not say of which tape it is."""
    unsigned: bool = False
    """Whether it has lines, or is a note, that do not."""


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
                seen = Seen()
                seen.findings += _look_at_other(self.storage, item, seen)
                yield seen


def _look_at_other(storage: Storage, item: _Listed, seen: Seen) -> Iterator[Finding]:
    stat, name = item.stat, item.stat.name
    split = name.partition("/")[0]
    if stat.wrong is not None:
        yield Finding("foreign", name, stat.wrong)
    elif name == NAME:
        yield from _manifest(storage)
    elif is_name(split) and name == metrics_path(split):
        yield from _metrics(storage, name, seen)
    elif (key := Key.parse_commit(name)) is not None:
        yield from _commit(storage, name, key, item.shards)
    elif name in NOTES:
        yield from _note(storage, name, seen)
    elif is_of_open_step(name):
        yield from _open_samples(storage, name)
    elif not is_of_index(name):
        yield Finding("foreign", name, "no part of a tape has this name; Rolltape never reads it")


def _open_samples(storage: Storage, name: str) -> Iterator[Finding]:
    """Whether finished samples of a step that is not recorded can be read. None of it is ever replayed."""
    file = OpenFile.parse(name)
    if file is None:
        yield Finding("foreign", name, "no part of a tape has this name; Rolltape never reads it")
        return
    try:
        read_open_file(storage, name, file.key)
    except StepMissingError:  # deleted since it was listed
        return
    except RolltapeError as error:
        text = f"finished samples of step {file.step} cannot be read, and are generated again: {error.what}"
        yield Finding("leftover", name, text)


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


def _commit(storage: Storage, name: str, key: Key, there: Sequence[Key]) -> Iterator[Finding]:
    """What is wrong with a commit, or with the shards it speaks of."""
    void = name == key.void
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


def _metrics(storage: Storage, name: str, seen: Seen) -> Iterator[Finding]:
    try:
        text = bytes(storage.read(name))
    except (StorageError, MemoryLimitError, StepMissingError) as error:  # an index may list what is not there
        yield Finding("metrics", name, error.what)
        return
    strange, damaged = _Strange(storage, name), 0
    for number, line in lines_of(text):
        node, wrong = _read(line)
        if node is not None:
            strange.add(number, node)
        if wrong is not None:
            damaged += 1
            if damaged <= MOST_LINES:
                yield Finding("metrics", name, f"line {number} {wrong}")
    if damaged > MOST_LINES:
        yield Finding("metrics", name, f"{counted(damaged - MOST_LINES, 'more line')} cannot be read")
    yield from strange.findings(seen)


def _note(storage: Storage, name: str, seen: Seen) -> Iterator[Finding]:
    """Whether a note can be read, and is of this tape."""
    try:
        text = bytes(storage.read(name))
        strange = _Strange(storage, name)
        for number, line in lines_of(text) if name.endswith(".jsonl") else [(1, text)]:
            if line and (node := as_node(line)) is not None:
                strange.add(number, node)
            elif name.endswith(".json"):
                yield Finding("damaged", name, "it cannot be read")
        yield from strange.findings(seen)
        if name in _READERS:
            deque(_READERS[name](storage), maxlen=0)
    except MisplacedFileError:  # that is told
        return
    except StepMissingError:  # deleted since it was listed
        return
    except RolltapeError as error:
        which = str(error.where).rpartition(", ")[2]
        yield Finding("damaged", name, f"{which}: {error.what}" if which.startswith("line") else error.what)


_READERS: dict[str, Callable[[Storage], Iterable[object]]] = {
    RUNS: read_lines,
    ACCEPTED: acceptances,
    REPLAYED: read_replayed,
}
"""Who reads a note line by line."""


class _Strange:
    """Lines or notes of another tape or split, which are one finding; and those too old to say."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self._first, self._count, self._unsigned = "", 0, False

    def add(self, number: int, node: Mapping[str, Any]) -> None:
        """Look at one more."""
        why = strange_note(self._storage, node, split_of(self._name))
        self._unsigned |= node.get("tape") is None
        if why is not None:
            self._count += 1
            what = f"line {number}" if self._name.endswith(".jsonl") else "it"
            self._first = self._first or f"{what} {why}"

    def findings(self, seen: Seen) -> Iterator[Finding]:
        """What there is to say of them, when all were looked at."""
        seen.unsigned = self._unsigned
        if self._count:
            more = f"; {counted(self._count, 'line')} of the file in all" if self._count > 1 else ""
            yield Finding("misplaced", self._name, self._first + more)


def wrong_with(line: bytes) -> str | None:
    """What is wrong with a line of metrics."""
    return _read(line)[1]


def _read(line: bytes | memoryview) -> tuple[Mapping[str, Any] | None, str | None]:
    """What a line of metrics says, or what is wrong with it."""
    try:
        body = check_line(line, "")
    except CorruptFileError as error:
        return None, error.what.removeprefix("a line ")
    if body is None:
        return None, "was cut short: its process died while writing it"
    try:
        return read_line(body, ""), None
    except CorruptFileError as error:
        return None, f"cannot be read: {error.what}"


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
