"""Opening a tape: where it is, whether it is one, and whether this run is the one it was recorded for."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from typing import Any

from rolltape.errors import (
    ConfigError,
    MismatchError,
    NotATapeError,
    StorageError,
    TapeNotFoundError,
    TapeReadOnlyError,
)
from rolltape.fingerprint import Part, compare
from rolltape.policy import Mode, OnMiss, Overwrite
from rolltape.settings import MatchLevel, Settings
from rolltape.steps import ALL_STEPS, NO_STEPS
from rolltape.storage import Spool, Storage, absolute, is_url, storage_at
from rolltape.storage.spool import default_root
from rolltape.tape.current_run import begin_run
from rolltape.tape.manifest import (
    NAME,
    Manifest,
    digest_of,
    environment,
    new_manifest,
    plain_parts,
    read_manifest,
    write_manifest,
)  # fmt: skip
from rolltape.tape.step_index import recordings

UNFINISHED_COPY = "copying.json"
"""Is there while a tape is being copied to a place, from before its first file until ``tape.json`` is."""


def begin_out(
    first: Settings, manifest: Manifest, directory: str, run: str | None
) -> tuple[Settings, str | None]:
    """Begin the tape ``out`` for a replay of the tape in ``directory``, or find it begun.

    Its options, and its run: ``run``, where another process of this replay began it.
    """
    out = resolved_dir(first.out or ".")
    if out == directory:
        raise ConfigError(
            "out is the very tape that is replayed",
            where=out,
            hint="give another directory: a replay never changes its tape",
        )
    storage = storage_at(out)
    baseline = {"id": manifest.id, "dir": directory}
    found = read_manifest(storage) or write_manifest(storage, new_manifest(first.fingerprint, baseline))
    if (found.baseline or {}).get("id") != manifest.id:
        raise MismatchError(
            "out is a tape already, and not one that a replay of this tape wrote",
            where=out,
            causes=[f"its baseline is {found.baseline['dir']}" if found.baseline else "it has no baseline"],
            hint="give a directory that does not exist yet",
        )
    if first.overwrite is Overwrite.REWRITE and run is None:
        storage.check_writable()
        run = begin_run(storage, found.id, first.rank, first.world_size)
    settings = Settings(
        dir=out,
        mode=Mode.RECORD,
        overwrite=first.overwrite,
        split=first.split,
        rank=first.rank,
        world_size=first.world_size,
        fingerprint=first.fingerprint,
        match=first.match,
        on_error=first.on_error,
        background=first.background,
        random_state=False,
        max_pending_bytes=first.max_pending_bytes,
        spool=first.spool,
        max_spool_bytes=first.max_spool_bytes,
    )
    return settings, run


log = logging.getLogger("rolltape")

OPENED = "ROLLTAPE_OPENED"
"""The file that `rolltape run` wants to be told in which tapes were opened, and what they replayed."""

_MOST_LOOKED_INTO = 200
"""Folders in which a tape is looked for, to say where it may be."""
STALE_AFTER = 24 * 3600.0
RAY_SESSION = re.compile(r"/(ray/session_[^/]+|session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_\d+)(/|$)")
"""A path inside the folder of a Ray session."""


def resolved_dir(directory: str) -> str:
    """The absolute directory, or the URL. Resolved once: others may have other working directories."""
    path = absolute(directory)
    if not is_url(path) and RAY_SESSION.search(path):
        log.warning(
            "the tape %s lies inside a Ray session folder, which Ray removes and other runs cannot find; "
            "give an absolute directory elsewhere",
            path,
        )
    return path


def storage_of(settings: Settings) -> Storage:
    """The storage of the tape that settings name; in front of a store, a spool for a run that writes."""
    place = resolved_dir(settings.dir or ".")
    if not is_url(place) or not (writes(settings) or may_begin(settings)):
        return storage_at(place)
    return storage_at(place, spool_of(settings), assume_new=settings.mode is Mode.RECORD)


def spool_of(settings: Settings) -> Spool:
    """Where recordings wait for an object store."""
    root = default_root(os.environ) if settings.spool is None else absolute(settings.spool)
    if is_url(root):
        raise ConfigError("the spool is a directory of this machine, and no URL", where=root)
    return Spool(root, settings.max_spool_bytes)


def may_begin(settings: Settings) -> bool:
    """Whether this run may start a tape where there is none: everything but a plain replay."""
    words = {settings.on_miss, settings.beyond}
    return settings.mode is not Mode.REPLAY or not words <= {None, OnMiss.ERROR, OnMiss.LIVE}


def writes(settings: Settings) -> bool:
    """Whether this run is to write to a tape that exists; substitutes are saved only where nothing is."""
    return settings.mode is not Mode.REPLAY or OnMiss.RECORD in (settings.on_miss, settings.beyond)


def open_tape(storage: Storage, settings: Settings) -> Manifest:
    """Read or begin the tape; refuses what is not one, and a run it was not recorded for."""
    tell_run(storage.location, settings.mode)
    manifest = read_manifest(storage)
    if manifest is None:
        if not may_begin(settings) or _lacks_manifest(storage):
            raise not_found(storage)
        _check_writable(storage, settings)
        storage.clean(STALE_AFTER)
        manifest = write_manifest(storage, new_manifest(settings.fingerprint))
    elif writes(settings):
        _check_writable(storage, settings)
        storage.clean(STALE_AFTER)
    check_names(storage, settings, manifest)
    if settings.mode is Mode.REWRITE:
        return _rewritten(storage, manifest, new_manifest(settings.fingerprint))
    check_fingerprint(manifest, settings, storage.location)
    return manifest


def check_names(storage: Storage, settings: Settings, manifest: Manifest) -> None:
    """Refuse names in options that nothing on the tape or in this run has."""
    parts = {*manifest.fingerprint, *settings.fingerprint, "environment", "inputs", "calls", "open_samples"}
    is_out = manifest.baseline is not None and settings.mode is Mode.RECORD  # then the first tape was checked
    if not is_out:
        named = [name if name in parts else name.partition(".")[0] for name in settings.match]
        _known("match", named, parts, "a part of the fingerprint", storage.location)
    if settings.mode is not Mode.REPLAY:
        return
    if settings.on_miss is OnMiss.LIVE and settings.split != Settings().split:  # else its first step says so
        splits = {folder.rstrip("/") for folder in storage.folders("")}
        _known("split", [settings.split], splits, "a split", storage.location)
    if settings.on_miss in (None, OnMiss.ERROR):
        check_stages(storage, settings, ())
    chosen = settings.steps if settings.beyond is OnMiss.LIVE else ALL_STEPS
    if chosen not in (ALL_STEPS, NO_STEPS) and not any(key.step in chosen for key in recordings(storage)):
        log.warning(
            "steps %s are none of those on the tape %s: everything runs live, nothing is replayed",
            chosen, storage.location,
        )  # fmt: skip


def check_stages(storage: Storage, settings: Settings, declared: Iterable[str]) -> None:
    """Refuse names in ``stages`` that are neither declared nor on the tape."""
    if settings.stages is None:
        return
    folders = (inner for split in storage.folders("") for inner in storage.folders(split))
    known = {*declared, *(folder.split("/")[1] for folder in folders)}
    if known:  # else there is nothing to mistake a name for; a replay misses every step
        _known("stages", settings.stages, known, "a stage", storage.location)


def _known(option: str, names: Iterable[str], known: Collection[str], what: str, where: str) -> None:
    for name in names:
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            listed = ", ".join(sorted(known)) or "none"
            raise ConfigError(
                f"{option} names {name!r}, which is not {what} of this tape or this run; there are: {listed}",
                where=where,
                hint=f"did you mean {nearest[0]!r}?" if nearest else f"correct {option}, or leave it out",
            )


def tell_run(location: str, mode: Mode, *replayed: int, mismatch: str = "") -> None:
    """Tell ``rolltape run``, where it started this program, that a tape was opened; later what it did.

    ``mismatch`` is what showed when the program ended: too late for an exit code of its own.
    """
    with suppress(OSError, KeyError):  # it started this program elsewhere, or not at all
        file = os.open(os.environ[OPENED], os.O_WRONLY | os.O_APPEND)
        said = [location, str(mode), *replayed, *([mismatch] if mismatch else [])]
        os.write(file, json.dumps(said).encode() + b"\n")
        os.close(file)


def was_opened() -> bool:
    """Whether the command of ``rolltape run`` has opened a tape so far; True where that is not known."""
    try:
        return os.stat(os.environ[OPENED]).st_size > 0
    except (OSError, KeyError):
        return True


def _lacks_manifest(storage: Storage) -> bool:
    """Whether there are recordings and no ``tape.json``; looks again for one that was just written."""
    begun = storage.exists(UNFINISHED_COPY) or next(recordings(storage), None) is not None
    return begun and not storage.exists(NAME)


def _check_writable(storage: Storage, settings: Settings) -> None:
    try:
        storage.check_writable()
    except TapeReadOnlyError as error:
        if settings.mode is Mode.AUTO:
            error.hint = f"to replay it without recording, set mode=replay; else {error.hint}"
        raise


def _rewritten(storage: Storage, old: Manifest, new: Manifest) -> Manifest:
    """The manifest for a run that rewrites. Steps it does not reach still have the old fingerprint."""
    if (old.fingerprint, old.environment) == (new.fingerprint, new.environment):
        return old
    earlier = dict(old.earlier)
    if old.digest != new.digest:
        earlier[old.digest] = old.fingerprint
    kept = replace(new, id=old.id, created=old.created, earlier=earlier, sources=old.sources)
    return write_manifest(storage, kept, replace=True)


def not_found(storage: Storage) -> TapeNotFoundError | NotATapeError:
    """The error for a place without a tape; says what is there instead."""
    location = storage.location
    if not is_url(location) and os.path.isfile(location):
        return NotATapeError(
            "the tape is a file; a tape is a directory",
            where=location,
            causes=["a file of the tape was named instead of the tape"],
            hint="give the directory that holds tape.json",
        )
    tapes = _tapes_in(storage) if is_url(location) or os.path.isdir(location) else None
    if tapes is not None and storage.exists(UNFINISHED_COPY):
        return TapeNotFoundError(
            "there is no whole tape here, but a copy of one that has not finished",
            where=location,
            causes=["it is still being copied", "the copy was interrupted"],
            hint="run the same `rolltape push`, `pull` or `sync` again: it goes on where it stopped",
        )
    there = 0 if tapes is None else sum(1 for _ in recordings(storage))
    if tapes is None or (is_url(location) and not tapes and not there):
        return TapeNotFoundError(
            "there is no tape here",
            where=location,
            causes=["the path is wrong, or relative to another directory", "the run was never recorded"],
            hint="record it first (mode: record), or list tapes with: rolltape ls DIRECTORY",
        )
    if there:
        return TapeNotFoundError(
            f"tape.json is missing beside {there} recordings",
            where=location,
            causes=["it was deleted", "a copy of the tape did not finish"],
            hint=f"make it anew (or fetch it, with --from COPY): rolltape repair {shlex.quote(location)}",
        )
    inside = f"it contains tapes: {', '.join(tapes[:5])}" if tapes else "it has no tape.json"
    return TapeNotFoundError(
        f"{'this prefix' if is_url(location) else 'this directory'} is not a tape: {inside}",
        where=location,
        hint="give the tape itself" if tapes else "record it first (mode: record)",
    )


def _tapes_in(storage: Storage) -> list[str]:
    try:
        folders = islice(storage.folders(""), _MOST_LOOKED_INTO)
        return sorted(folder.rstrip("/") for folder in folders if storage.exists(folder + NAME))
    except StorageError:  # it may be entered but not listed
        return []


def check_fingerprint(manifest: Manifest, settings: Settings, where: str) -> None:
    """Compare what this run says about itself with what was recorded; loud about every difference."""
    given = plain_parts(settings.fingerprint)
    parts = [] if manifest.lost else compare(manifest.fingerprint, given, settings.match)
    if manifest.lost and given and digest_of(given) != manifest.lost:
        level = min(
            (settings.match.get(name, MatchLevel.ERROR) for name in given), key=list(MatchLevel).index
        )
        parts = [
            Part("fingerprint", False, level, f"another, of which only {manifest.lost} is left", str(given))
        ]
    now, then = environment(), manifest.environment
    names = [name for name in now if name in then]
    level = settings.match.get("environment", MatchLevel.WARN)
    parts += compare(_environment(then, names), _environment(now, names), {"environment": level})
    report(parts, where)
    unchecked = ", ".join(name for name in manifest.fingerprint if name not in settings.fingerprint)
    if unchecked:
        loud = logging.WARNING if writes(settings) else logging.INFO
        log.log(loud, "the tape %s records %s, which this run does not state: not checked", where, unchecked)


def _environment(found: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {"environment": {name: found[name] for name in names}}


def report(
    parts: Sequence[Part], where: str, causes: Sequence[str] = (), way_out: str = "relax a part:"
) -> None:
    """Raise for parts that must match, warn for those that should."""
    differ = [part for part in parts if not part.same]
    for part in differ:
        if part.level is MatchLevel.WARN:
            log.warning("%s differs from the recording %s: %s", part.name, where, part)
    failed = [part for part in differ if part.level is MatchLevel.ERROR]
    if not failed:
        return
    same = [part.name for part in parts if part.same]
    lines = [f"    {part}" for part in failed]
    matched = f"\n  the same: {', '.join(same)}" if same else ""
    raise MismatchError(
        "this run is not the one that was recorded\n  different:\n" + "\n".join(lines) + matched,
        where=where,
        causes=causes or ["the configuration changed since the recording"],
        hint=f"record again, or {way_out} match={{{failed[0].name!r}: 'warn'}}",
    )
