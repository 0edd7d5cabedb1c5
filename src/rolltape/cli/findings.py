"""What is wrong with a tape: every file is read, every checksum compared, everything decoded."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from rolltape.cli.tapes import all_files, is_name
from rolltape.errors import (
    CorruptFileError,
    MissingDependencyError,
    RolltapeError,
    StepMissingError,
    UnknownAdapterError,
)
from rolltape.key import Key, metrics_path
from rolltape.storage import LocalStorage, Stat, posix
from rolltape.tape.manifest import NAME, read_manifest
from rolltape.tape.metrics import check_line
from rolltape.tape.opening import STALE_AFTER
from rolltape.tape.recording import Recording
from rolltape.verify.accept import NAME as ACCEPTED
from rolltape.verify.noise import NAME as NOISE


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    kind: str
    """``damaged``, ``misplaced``, ``inputs``, ``metrics``, ``foreign`` or ``leftover``."""
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
    in_progress: int = 0
    """Files that another process is writing now."""


Tick = Callable[[Stat], None]
"""Told of every file that is done."""


def inspect(storage: LocalStorage, tick: Tick = lambda stat: None) -> Report:
    """Check all of a tape."""
    report = Report(storage.location)
    listed = sorted(all_files(storage), key=lambda stat: stat.name)
    names = {stat.name for stat in listed}
    for stat in listed:
        report.files += 1
        report.bytes += stat.size
        report.findings += _look_at(storage, stat, names, report)
        tick(stat)
    stale, report.in_progress = stale_files(storage)
    report.findings += [Finding("leftover", name, "half-written by a process that is gone") for name in stale]
    return report


def _look_at(storage: LocalStorage, stat: Stat, names: set[str], report: Report) -> Iterator[Finding]:
    name = stat.name
    split = name.partition("/")[0]
    if name == NAME:
        yield from _manifest(storage)
    elif is_name(split) and name == metrics_path(split):
        yield from _metrics(storage, name)
    elif (key := Key.parse(name)) is not None:
        yield from _recording(storage, key, names, report)
    elif name not in (NOISE, ACCEPTED):  # notes of the comparison, which reads them with care itself
        yield Finding("foreign", name, "no part of a tape has this name; Rolltape never reads it")


def _manifest(storage: LocalStorage) -> Iterator[Finding]:
    try:
        read_manifest(storage)
    except RolltapeError as error:
        yield Finding("damaged", NAME, error.what)


def _metrics(storage: LocalStorage, name: str) -> Iterator[Finding]:
    for number, line in enumerate(bytes(storage.read(name)).split(b"\n"), 1):
        wrong = _wrong_with(line) if line else None
        if wrong is not None:
            yield Finding("metrics", name, f"line {number} {wrong}")


def _wrong_with(line: bytes) -> str | None:
    """What is wrong with a line of metrics."""
    try:
        body = check_line(line, "")
    except CorruptFileError:
        return "does not match its checksum"
    if body is None:
        return "was cut short: its process died while writing it"
    try:
        node = json.loads(b"{" + body)
    except ValueError:
        return "has a right checksum and is no JSON"
    good = type(node.get("step")) is int and isinstance(node.get("metrics"), dict)
    return None if good else "has no step or no metrics"


def _recording(storage: LocalStorage, key: Key, names: set[str], report: Report) -> Iterator[Finding]:
    recording = Recording(storage, key)
    try:
        recording.verify()
    except (UnknownAdapterError, MissingDependencyError):  # checksums come first, so these are right
        report.undecoded.append(key.path)
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
    yield from _place(recording, names)


def _damaged_columns(recording: Recording) -> Iterator[str]:
    """Which columns of a damaged file cannot be read; none where already its footer cannot."""
    try:
        file = recording.file
        names = list(file.header["columns"])
    except RolltapeError:
        return
    for name in names:
        try:
            file.columns([name])
        except CorruptFileError:
            yield name
        except RolltapeError:
            continue


def _place(recording: Recording, names: set[str]) -> Iterator[Finding]:
    """Whether a recording is what its name says, and has its inputs."""
    key, about = recording.key, recording.about
    fields = ("split", "stage", "step", "call", "rank", "world_size")
    says = {name: about[name] for name in fields if name in about}
    differs = [f"{name} {value}" for name, value in says.items() if value != getattr(key, name)]
    if differs:
        yield Finding(
            "misplaced", key.path, f"it was recorded as {', '.join(differs)}; was it renamed or copied?"
        )
    inputs = replace(key, inputs=not key.inputs).path
    if not key.inputs and "inputs" in about and inputs not in names:
        yield Finding("inputs", key.path, "its inputs were recorded, and their file is missing")
    if key.inputs and inputs not in names:
        yield Finding(
            "leftover", key.path, "inputs of a result that is not there; prune --steps removes them"
        )


def stale_files(storage: LocalStorage) -> tuple[list[str], int]:
    """The half-written files of writers that are gone, and how many files are being written now."""
    stale: list[str] = []
    live = 0
    folder = os.path.join(storage.location, ".tmp")
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(".tmp"):  # the lock
                continue
            with suppress(FileNotFoundError):  # published meanwhile
                age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if posix.is_stale(posix.writer_runs(entry.name), age, STALE_AFTER):
                    stale.append(f".tmp/{entry.name}")
                else:
                    live += 1
    return sorted(stale), live
