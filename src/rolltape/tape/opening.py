"""Opening a tape: where it is, whether it is one, and whether this run is the one it was recorded for."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rolltape.errors import ConfigError, MismatchError, NotATapeError, TapeNotFoundError, TapeReadOnlyError
from rolltape.fingerprint import Part, compare
from rolltape.policy import Mode, OnMiss
from rolltape.settings import MatchLevel, Settings
from rolltape.storage import Storage
from rolltape.tape.manifest import (
    NAME,
    Manifest,
    environment,
    new_manifest,
    plain_parts,
    read_manifest,
    write_manifest,
)  # fmt: skip

log = logging.getLogger("rolltape")

STALE_AFTER = 24 * 3600.0
RAY_SESSION = re.compile(r"/(ray/session_[^/]+|session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_\d+)(/|$)")
"""A path inside the folder of a Ray session."""


def resolved_dir(directory: str) -> str:
    """The absolute directory. Resolved once, here: other processes may have other working directories."""
    if "://" in directory:
        raise ConfigError(
            "a tape is a local directory; object stores are not supported yet",
            where=directory,
            hint="record to a directory, and copy it there afterwards",
        )
    path = os.path.abspath(os.path.expanduser(directory))
    if RAY_SESSION.search(path):
        log.warning(
            "the tape %s lies inside a Ray session folder, which Ray removes and other runs cannot find; "
            "give an absolute directory elsewhere",
            path,
        )
    return path


def may_begin(settings: Settings) -> bool:
    """Whether this run may start a tape where there is none: everything but a plain replay."""
    words = {settings.on_miss, settings.beyond}
    return settings.mode is not Mode.REPLAY or not words <= {None, OnMiss.ERROR, OnMiss.LIVE}


def writes(settings: Settings) -> bool:
    """Whether this run is to write to a tape that exists; substitutes are saved only where nothing is."""
    return settings.mode is not Mode.REPLAY or OnMiss.RECORD in (settings.on_miss, settings.beyond)


def open_tape(storage: Storage, settings: Settings) -> Manifest:
    """Read or begin the tape; refuses what is not one, and a run it was not recorded for."""
    manifest = read_manifest(storage)
    if manifest is None:
        if not may_begin(settings):
            raise not_found(storage)
        _check_writable(storage, settings)
        storage.clean(STALE_AFTER)
        manifest = write_manifest(storage, new_manifest(settings.fingerprint))
    elif writes(settings):
        _check_writable(storage, settings)
        storage.clean(STALE_AFTER)
    if settings.mode is Mode.REWRITE:
        return _rewritten(storage, manifest, new_manifest(settings.fingerprint))
    check_fingerprint(manifest, settings, storage.location)
    return manifest


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
    return write_manifest(
        storage, replace(new, id=old.id, created=old.created, earlier=earlier), replace=True
    )


def not_found(storage: Storage) -> TapeNotFoundError | NotATapeError:
    """The error for a place without a tape; says what is there instead."""
    location = storage.location
    if os.path.isfile(location):
        return NotATapeError(
            "the tape is a file; a tape is a directory",
            where=location,
            causes=["a file of the tape was named instead of the tape"],
            hint="give the directory that holds tape.json",
        )
    if not os.path.isdir(location):
        return TapeNotFoundError(
            "there is no tape here",
            where=location,
            causes=["the path is wrong, or relative to another directory", "the run was never recorded"],
            hint="record it first (mode: record), or list tapes with: rolltape ls DIRECTORY",
        )
    tapes = _tapes_in(location)
    inside = f"it contains tapes: {', '.join(tapes[:5])}" if tapes else "it has no tape.json"
    return TapeNotFoundError(
        f"this directory is not a tape: {inside}",
        where=location,
        hint="give the tape itself" if tapes else "record it first (mode: record)",
    )


def _tapes_in(folder: str) -> list[str]:
    try:
        return sorted(e.name for e in os.scandir(folder) if os.path.isfile(os.path.join(e.path, NAME)))
    except OSError:  # it may be entered but not listed
        return []


def check_fingerprint(manifest: Manifest, settings: Settings, where: str) -> None:
    """Compare what this run says about itself with what was recorded; loud about every difference."""
    parts = compare(manifest.fingerprint, plain_parts(settings.fingerprint), settings.match)
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


def report(parts: Sequence[Part], where: str, causes: Sequence[str] = ()) -> None:
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
        hint=f"record again, or relax a part: match={{{failed[0].name!r}: 'warn'}}",
    )
