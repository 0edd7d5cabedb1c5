"""Opening a tape: where it is, whether it is one, and whether this run is the one it was recorded for."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence

from rolltape.errors import MismatchError, NotATapeError, TapeNotFoundError
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
)

log = logging.getLogger("rolltape")

STALE_AFTER = 24 * 3600.0
_RAY_SESSION = re.compile(r"/ray/session_[^/]+/")


def resolved_dir(directory: str) -> str:
    """The absolute directory. Resolved once, here: other processes may have other working directories."""
    path = os.path.abspath(os.path.expanduser(directory))
    if _RAY_SESSION.search(path):
        log.warning(
            "the tape %s lies inside a Ray session folder, which Ray removes and other runs cannot find; "
            "give an absolute directory elsewhere",
            path,
        )
    return path


def writes(settings: Settings) -> bool:
    """Whether this run may put anything on the tape."""
    if settings.mode is Mode.REPLAY:
        return settings.on_miss in (OnMiss.RECORD, OnMiss.CYCLE, OnMiss.LAST, OnMiss.NEAREST)
    return settings.mode is not Mode.OFF


def open_tape(storage: Storage, settings: Settings) -> Manifest:
    """Read or begin the tape; refuses what is not one, and a run it was not recorded for."""
    manifest = read_manifest(storage)
    if manifest is None:
        if settings.mode is Mode.REPLAY and not writes(settings):
            raise not_found(storage)
        storage.check_writable()
        manifest = write_manifest(storage, new_manifest(settings.fingerprint))
    elif writes(settings):
        storage.check_writable()
        storage.clean(STALE_AFTER)
    if settings.mode is Mode.REWRITE and plain_parts(settings.fingerprint) != manifest.fingerprint:
        return write_manifest(storage, new_manifest(settings.fingerprint), replace=True)
    check_fingerprint(manifest, settings, storage.location)
    return manifest


def not_found(storage: Storage) -> TapeNotFoundError | NotATapeError:
    """The error for a place without a tape; says what is there instead."""
    location = storage.location
    if os.path.isfile(location):
        return NotATapeError("the tape is a file; a tape is a directory", where=location)
    if not os.path.isdir(location):
        return TapeNotFoundError(
            "there is no tape here",
            where=location,
            causes=["the path is wrong, or relative to another directory", "the run was never recorded"],
            hint="record it first (mode: record), or list tapes with: rolltape ls DIRECTORY",
        )
    tapes = sorted(e.name for e in os.scandir(location) if os.path.isfile(os.path.join(e.path, NAME)))
    inside = f"it contains tapes: {', '.join(tapes[:5])}" if tapes else "it has no tape.json"
    return TapeNotFoundError(
        f"this directory is not a tape: {inside}",
        where=location,
        hint="give the tape itself" if tapes else "record it first (mode: record)",
    )


def check_fingerprint(manifest: Manifest, settings: Settings, where: str) -> None:
    """Compare what this run says about itself with what was recorded; loud about every difference."""
    parts = compare(manifest.fingerprint, plain_parts(settings.fingerprint), settings.match)
    now, then = environment(), dict(manifest.environment)
    both = {name: value for name, value in now.items() if name in then}
    level = settings.match.get("environment", MatchLevel.WARN)
    parts += compare(
        {"environment": {n: then[n] for n in both}}, {"environment": both}, {"environment": level}
    )
    report(parts, where)
    unchecked = [name for name in manifest.fingerprint if name not in settings.fingerprint]
    if unchecked:
        log.info("the tape %s records %s, which this run does not state", where, ", ".join(unchecked))


def report(parts: Sequence[Part], where: str) -> None:
    """Raise for parts that must match, warn for those that should."""
    differ = [part for part in parts if not part.same]
    for part in differ:
        if part.level is MatchLevel.WARN:
            log.warning("%s differs from the recording: %s", part.name, part)
    failed = [part for part in differ if part.level is MatchLevel.ERROR]
    if not failed:
        return
    same = [part.name for part in parts if part.same]
    lines = [f"    {part}" for part in failed]
    matched = f"\n  the same: {', '.join(same)}" if same else ""
    raise MismatchError(
        "this run is not the one that was recorded\n  different:\n" + "\n".join(lines) + matched,
        where=where,
        causes=["the configuration changed since the recording"],
        hint=f"record again, or relax a part: match={{{failed[0].name!r}: 'warn'}}",
    )
