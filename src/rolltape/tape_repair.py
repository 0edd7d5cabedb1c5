"""Mends a tape: fetches what is damaged or gone from a copy, or drops it, to be recorded again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rolltape.errors import (
    CorruptFileError,
    MismatchError,
    RolltapeError,
    StepMissingError,
    TapeNotFoundError,
)
from rolltape.key import Key, metrics_path
from rolltape.reader.acceptances import NAME as ACCEPTED
from rolltape.reader.dropped_steps import NAME as DROPPED
from rolltape.reader.integrity import Finding, incomplete_calls, inspect, look_at_recording, wrong_with
from rolltape.storage import SegmentedStorage, Storage
from rolltape.tape.commits import Committer
from rolltape.tape.manifest import NAME, Manifest, digest_of, new_manifest, read_manifest, write_manifest
from rolltape.tape.opening import not_found
from rolltape.tape.place import as_node, strange_line
from rolltape.tape.recording import Recording
from rolltape.tape.segments import rebuild_index
from rolltape.tape.shards import named, shortfall_of
from rolltape.tape.step_index import recordings

MENDED = ("damaged", "missing", "incomplete", "misplaced", "inputs", "metrics")
"""The findings of a check that can be mended; leftovers and foreign files harm nobody."""


@dataclass(slots=True)
class Repair:
    """What was done."""

    fetched: list[str] = field(default_factory=list)
    """Files that were fetched from the copy."""
    dropped: list[tuple[str, int]] = field(default_factory=list)
    """Splits and steps that were dropped with all their stages."""
    completed: list[str] = field(default_factory=list)
    """Steps of several ranks that lacked nothing but the commit."""
    lines: int = 0
    """Lines of metrics that were dropped."""
    made: bool = False
    """Whether ``tape.json`` was made anew."""
    indexed: int | None = None
    """How many recordings an index of the segments has that was made anew; None if none was."""
    left: list[Finding] = field(default_factory=list)
    """What is still wrong."""


def repair(tape: Storage, copy: Storage | None = None, *, drop: bool = False) -> Repair:
    """Make ``tape.json`` if it is gone; fetch what is damaged or gone from ``copy``; drop what is left then.

    A step is dropped with all its stages and metrics: what was computed from a recording goes with it.
    """
    done = Repair()
    _mend_index(tape, done)
    _mend_manifest(tape, copy, done)
    for finding in incomplete_calls(tape, {stat.name for stat in tape.everything()}):
        key = Key.parse(finding.file)
        if key is not None and Committer(tape, "", "").complete(key):
            done.completed.append(key.commit)
    if copy is not None:
        for finding in _wrong(tape):
            _fetch(tape, copy, finding, done)
    if drop:
        for finding in _wrong(tape):
            _drop(tape, finding, done)
    # A step that was dropped is missing from now on, until it is recorded again: that is no news.
    dropped = set(done.dropped)
    done.left = [one for one in _wrong(tape) if (at := _place(one)) is None or at not in dropped]
    return done


def _wrong(tape: Storage) -> list[Finding]:
    return [finding for finding in inspect(tape).findings if finding.kind in MENDED]


def _place(finding: Finding) -> tuple[str, int] | None:
    key = Key.parse(finding.file) or Key.parse_commit(finding.file)
    return None if key is None else (key.split, key.step)


# -- the index of the segments -----------------------------------------------------------------------------


def _mend_index(tape: Storage, done: Repair) -> None:
    if not isinstance(tape, SegmentedStorage):
        return
    try:
        tape.whole_index()
    except CorruptFileError:
        done.indexed = rebuild_index(tape)


# -- tape.json ---------------------------------------------------------------------------------------------


def _mend_manifest(tape: Storage, copy: Storage | None, done: Repair) -> None:
    theirs = None if copy is None else read_manifest(copy)
    if copy is not None and theirs is None:
        raise not_found(copy)
    try:
        mine = read_manifest(tape)
    except CorruptFileError:
        mine = None
    if mine is not None and theirs is not None and mine.id != theirs.id:
        raise MismatchError(
            "the copy is a copy of another tape",
            where=copy.location if copy else None,
            causes=[f"it has the id {theirs.id[:8]}, and this tape {mine.id[:8]}"],
            hint="name a copy of this very tape",
        )
    if mine is not None:
        return
    if theirs is not None:
        write_manifest(tape, theirs, replace=True)
        done.fetched.append(NAME)
        return
    write_manifest(tape, _made_anew(tape), replace=True)
    done.made = True


def _made_anew(tape: Storage) -> Manifest:
    """What the files still say about their tape: when it began, its id, a digest of its fingerprint."""
    when: list[str] = []
    splits: dict[str, None] = {}
    ids: Counter[str] = Counter()
    digests: Counter[str] = Counter()
    for key in recordings(tape):
        splits[key.split] = None
        try:
            about = Recording(tape, key).about
        except RolltapeError:  # a damaged one says nothing
            continue
        when += [about.recorded] if about.recorded else []
        digests.update([about.fingerprint] if about.fingerprint else [])
        ids.update([about.tape] if about.tape else [])
    if not when:
        if next(recordings(tape), None) is None:
            raise not_found(tape)
        raise TapeNotFoundError("tape.json is gone, and no recording can be read", where=tape.location)
    fresh = new_manifest({})
    digest = digests.most_common(1)[0][0] if digests else None
    recorded = [one for one, _ in ids.most_common(1)]
    named = [*_said_in(tape, ACCEPTED, "tape"), *_said_in(tape, DROPPED, "tape")]
    # Recordings of an older version do not say it; what was logged beside them since does.
    logged = [one for split in splits for one in _said_in(tape, metrics_path(split), "tape")]
    said = [*named, *recorded, *(one for one, _ in Counter(logged).most_common(1))]
    known = next((one for one in said if len(one) == len(fresh.id)), fresh.id)
    sources = [*recorded, *named, *_said_in(tape, ACCEPTED, "before", "candidate")]
    return replace(
        fresh,
        id=known,
        sources=[one for one in dict.fromkeys(sources) if one != known],
        created=min(when),
        environment={},
        program={},
        lost=None if digest == digest_of({}) else digest,
    )


def _said_in(tape: Storage, name: str, *fields: str) -> list[str]:
    """The ids of tapes that the lines of a file name, the latest first."""
    nodes = [as_node(line) or {} for line in reversed(_lines(tape, name))]
    return [one for node in nodes for field in fields if isinstance(one := node.get(field), str)]


# -- recordings and metrics --------------------------------------------------------------------------------


def _fetch(tape: Storage, copy: Storage, finding: Finding, done: Repair) -> None:
    """Take one file from the copy, if it is sound there."""
    key = Key.parse(finding.file) or Key.parse_commit(finding.file)
    if key is not None and key.is_shard and (finding.kind == "incomplete" or key.commit == finding.file):
        _fetch_shards(tape, copy, key, done)
        return
    if key is None:
        if finding.file not in done.fetched:
            _fetch_lines(tape, copy, finding.file, done)
        return
    result = replace(key, inputs=False)
    wanted = [one for one in (replace(key, inputs=True), result) if copy.exists(one.path)]
    if result not in wanted or not all(_is_sound(copy, one) for one in wanted):
        return
    for one in wanted:  # inputs first: where a result is visible, what it was made of is too
        tape.publish(one.path, [copy.read(one.path)], replace=True)
        done.fetched.append(one.path)


def _is_sound(copy: Storage, key: Key) -> bool:
    partner = copy.exists(replace(key, inputs=not key.inputs).path)
    return not look_at_recording(copy, key, has_partner=partner).findings


def _fetch_lines(tape: Storage, copy: Storage, name: str, done: Repair) -> None:
    """Take metrics or a note from the copy, if all of it is sound and of this tape there."""
    if not copy.exists(name):
        return
    mine, theirs = _sound_lines(tape, name), _lines(copy, name)
    if len(theirs) >= len(mine) and theirs == _sound_lines(copy, name):
        _write_lines(tape, name, theirs)
        done.fetched.append(name)


def _sound_lines(storage: Storage, name: str) -> list[bytes]:
    """The lines, or the note, that can be read and are of this tape."""
    logged = name.endswith("/metrics.jsonl")
    return [
        line
        for line in _lines(storage, name)
        if not (logged and wrong_with(line)) and not strange_line(storage, name, line)
    ]


def _fetch_shards(tape: Storage, copy: Storage, key: Key, done: Repair) -> None:
    """Take all shards of a call from the copy, if it is complete and sound there: they belong together."""
    there = named(copy.names(f"{key.split}/{key.stage}/"))[0]
    shards = [shard for shard in there if shard.is_shard and shard.commit == key.commit]
    files = [one for shard in shards for one in (replace(shard, inputs=True), shard) if copy.exists(one.path)]
    if not shards or shortfall_of(copy, key) is not None or not all(_is_sound(copy, one) for one in files):
        return
    tape.delete(key.commit)
    for one in files:
        tape.publish(one.path, [copy.read(one.path)], replace=True)
        done.fetched.append(one.path)
    if copy.exists(key.commit):
        tape.publish(key.commit, [copy.read(key.commit)], replace=True)
        done.fetched.append(key.commit)


def _drop(tape: Storage, finding: Finding, done: Repair) -> None:
    at = _place(finding)
    if at is None:
        if finding.kind in ("metrics", "misplaced"):
            kept = _sound_lines(tape, finding.file)
            done.lines += len(_lines(tape, finding.file)) - len(kept)
            if kept or finding.kind == "metrics":
                _write_lines(tape, finding.file, kept)
            else:  # all of it is of another tape
                tape.delete(finding.file)
        return
    if at in done.dropped:
        return
    done.dropped.append(at)
    split, step = at
    keys = [key for key in recordings(tape, split) if key.step == step]
    files = [name for key in keys if key.is_shard for name in (key.commit, key.void)]
    files += [replace(key, inputs=inputs).path for key in keys for inputs in (False, True)]
    tape.delete_all([*files, finding.file])
    name = metrics_path(split)
    lines = _lines(tape, name)
    if lines:
        _write_lines(tape, name, [line for line in lines if _step(line) != step])


def _step(line: bytes) -> int | None:
    return None if wrong_with(line) else json.loads(line)["step"]


def _lines(storage: Storage, name: str) -> list[bytes]:
    """The lines of a file; all of it at once where it is one note."""
    try:
        text = bytes(storage.read(name))
        return (
            [line for line in text.split(b"\n") if line] if name.endswith(".jsonl") else [text.rstrip(b"\n")]
        )
    except StepMissingError:
        return []


def _write_lines(tape: Storage, name: str, lines: Iterable[bytes]) -> None:
    tape.publish(name, [line + b"\n" for line in lines], replace=True)
