"""Tapes opened to be looked at: nothing on them changes, and no run is compared with them.

A tape can hold 100,000 recordings. Everything here reads names only, and makes a ``Key`` of a name (which
checks it thoroughly) no sooner than somebody wants to see that one.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from rolltape.cli.output import moment
from rolltape.errors import NotATapeError, TapeNotFoundError
from rolltape.key import Key
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.storage import LocalStorage, Stat
from rolltape.tape.manifest import NAME, Manifest, read_manifest
from rolltape.tape.opening import not_found
from rolltape.tape.recording import Recording

DEEPEST = 4
"""How many folders down tapes are looked for."""

MOST_FOLDERS = 20_000
"""How many folders are looked into before the search gives up."""

_FILE = re.compile(r"step_([0-9]{6,19})(\.[^/]+)?\.parquet")


@dataclass(frozen=True, slots=True)
class OpenTape:
    """A tape and where it was found."""

    path: str
    """As the user wrote it."""
    storage: LocalStorage
    manifest: Manifest

    @property
    def title(self) -> str:
        """The tape in a line, for people."""
        return f"id {str(self.manifest.id)[:8]}, created {moment(self.manifest.created)}"


def open_tape(path: str) -> OpenTape:
    """The tape at this path; says what is there instead if it is none."""
    storage = LocalStorage(path)
    manifest = read_manifest(storage)
    if manifest is None:
        raise not_found(storage)
    return OpenTape(path, storage, manifest)


def is_tape(path: str) -> bool:
    """Whether there is a tape, readable or not."""
    return os.path.isfile(os.path.join(path, NAME))


@dataclass(frozen=True, slots=True)
class Search:
    """The tapes found under a directory."""

    tapes: list[str]
    complete: bool
    """Whether the search ended before its limit of folders."""


def find_tapes(root: str) -> Search:
    """The tapes at or under ``root``: a few folders deep, without hidden folders and links."""
    if os.path.isfile(root):
        raise NotATapeError("this is a file; a tape is a directory", where=os.path.abspath(root))
    if not os.path.isdir(root):
        raise TapeNotFoundError("there is no such directory", where=os.path.abspath(root))
    found: list[str] = []
    pending = deque([(root, 0)])
    looked = 0
    while pending and looked < MOST_FOLDERS:
        folder, depth = pending.popleft()
        looked += 1
        if is_tape(folder):
            found.append(folder)
        elif depth < DEEPEST:
            pending += [(inner, depth + 1) for inner in _folders(folder)]
    return Search(sorted(found), not pending)


def _folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if e.name[0] != "." and e.is_dir(follow_symlinks=False)]
    except OSError:  # one that may not be read hides no tape of this user's
        return []
    return sorted(names if folder == "." else [os.path.join(folder, name) for name in names])


@dataclass(frozen=True, slots=True)
class Shelf:
    """The recordings of one stage of one split."""

    split: str
    stage: str
    files: list[tuple[int, str]]
    """The step and the name of every recording, in order."""
    inputs: list[tuple[int, str]]
    """The same for recorded inputs."""

    @property
    def steps(self) -> list[int]:
        return sorted({step for step, _ in self.files})

    def recordings(self, last: int | None = None) -> list[Key]:
        """The keys of the last so many recordings, in order; names that are no key's are left out."""
        names = [name for _, name in (self.files if last is None else self.files[len(self.files) - last :])]
        return sorted((key for name in names if (key := Key.parse(name)) is not None), key=order)


def order(key: Key) -> tuple[int, bool, int, str, int]:
    """Recordings of one stage by step, call and rank."""
    number, name = (key.call, "") if isinstance(key.call, int) else (0, key.call)
    return key.step, bool(name), number, name, key.rank


def shelves(
    storage: LocalStorage, split: str | None = None, stage: str | None = None, steps: StepSelector = ALL_STEPS
) -> Iterator[Shelf]:
    """Every stage of every split that is asked for, with its recordings of these steps."""
    for split_name in _names(storage, ""):
        if split not in (None, split_name):
            continue
        for stage_name in _names(storage, f"{split_name}/"):
            if stage in (None, stage_name):
                yield _shelf(storage, split_name, stage_name, steps)


def _names(storage: LocalStorage, folder: str) -> list[str]:
    """The folders in this one that can be a split or a stage, by name."""
    names = sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in storage.folders(folder))
    return [name for name in names if is_name(name)]


def is_name(name: str) -> bool:
    """Whether a folder's name can be a split's or a stage's."""
    return Key.parse(f"{name}/{name}/step_000000.parquet") is not None


def _shelf(storage: LocalStorage, split: str, stage: str, steps: StepSelector) -> Shelf:
    folder = f"{split}/{stage}/"
    files: list[tuple[int, str]] = []
    inputs: list[tuple[int, str]] = []
    everything = steps == ALL_STEPS
    for name in storage.names(folder):
        match = _FILE.fullmatch(name, len(folder))
        if match is None or not (everything or int(match[1]) in steps):
            continue
        (inputs if name.endswith(".in.parquet") else files).append((int(match[1]), name))
    return Shelf(split, stage, sorted(files), sorted(inputs))


def all_files(storage: LocalStorage) -> Iterator[Stat]:
    """Every file of the tape with its size, whoever put it there; hidden ones are left out.

    Not by way of the storage, which knows only names that a tape can have.
    """
    pending = [("", 0)]
    while pending:
        folder, depth = pending.pop()
        with suppress(FileNotFoundError), os.scandir(f"{storage.location}/{folder}") as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    pending += [(f"{folder}{entry.name}/", depth + 1)] if depth < DEEPEST else []
                else:
                    with suppress(FileNotFoundError):  # deleted since it was listed
                        yield Stat(folder + entry.name, entry.stat().st_size, "")


def find_recording(tape: OpenTape, key: Key, rank: int | None) -> Recording | None:
    """The recording of this key; of several shards that of ``rank``, the first where none is asked for."""
    if rank is None and tape.storage.exists(key.path):
        return Recording(tape.storage, key)
    like = replace(key, rank=0, world_size=1, inputs=False)
    for shelf in shelves(tape.storage, key.split, key.stage, StepSelector.parse(key.step)):
        for found in shelf.recordings():
            if replace(found, rank=0, world_size=1) == like and rank in (None, found.rank):
                wanted = replace(found, inputs=key.inputs)
                return Recording(tape.storage, wanted) if tape.storage.exists(wanted.path) else None
    return None
