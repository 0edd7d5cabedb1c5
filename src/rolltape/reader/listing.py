"""Which tapes there are, and which files they have: names only, nothing is opened.

A tape can hold 100,000 recordings. Everything here reads names only, and makes a ``Key`` of a name (which
checks it thoroughly) no sooner than somebody wants to see that one.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, takewhile

from rolltape.errors import NotATapeError, TapeNotFoundError
from rolltape.key import Key
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.storage import LocalStorage, Stat
from rolltape.storage.beneath import is_recording
from rolltape.tape.current_run import NAME as RUNS
from rolltape.tape.current_run import other_run
from rolltape.tape.manifest import NAME
from rolltape.tape.opening import not_found
from rolltape.tape.step_index import call_order, recordings

NOTES = ("noise.json", "accepted.jsonl", "replayed.jsonl", "dropped.jsonl", RUNS)
"""Files beside the recordings: the noise floor, who accepted what, what a replay was given, which steps were
dropped on purpose, which run wrote the tape last.
"""

DEEPEST = 4
"""How many folders down tapes are looked for."""

MOST_FOLDERS = 20_000
"""How many folders are looked into before the search gives up."""

_FILE = re.compile(r"step_([0-9]{6,19})(\.[^/]+)?\.parquet")


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
    storage = LocalStorage(root)
    if not is_tape(root) and next(recordings(storage), None) is not None:
        raise not_found(storage)
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
class StageFiles:
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
        return _keys(
            name for _, name in (self.files if last is None else self.files[len(self.files) - last :])
        )

    def at(self, step: int) -> list[Key]:
        """The keys of the calls and shards of one step, in order."""
        first = bisect_left(self.files, (step, ""))
        return _keys(
            name for at, name in takewhile(lambda file: file[0] == step, islice(self.files, first, None))
        )


def _keys(names: Iterable[str]) -> list[Key]:
    return sorted((key for name in names if (key := Key.parse(name)) is not None), key=call_order)


def stage_files(
    storage: LocalStorage, split: str | None = None, stage: str | None = None, steps: StepSelector = ALL_STEPS
) -> Iterator[StageFiles]:
    """Every stage of every split that is asked for, with its recordings of these steps."""
    for split_name in _names(storage, ""):
        if split not in (None, split_name):
            continue
        for stage_name in _names(storage, f"{split_name}/"):
            if stage in (None, stage_name):
                yield _listed(storage, split_name, stage_name, steps)


def _names(storage: LocalStorage, folder: str) -> list[str]:
    """The folders in this one that can be a split or a stage, by name."""
    names = sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in storage.folders(folder))
    return [name for name in names if is_name(name)]


def is_name(name: str) -> bool:
    """Whether a folder's name can be a split's or a stage's."""
    return Key.parse(f"{name}/{name}/step_000000.parquet") is not None


def _listed(storage: LocalStorage, split: str, stage: str, steps: StepSelector) -> StageFiles:
    folder = f"{split}/{stage}/"
    files: list[tuple[int, str]] = []
    inputs: list[tuple[int, str]] = []
    everything = steps == ALL_STEPS
    is_others = other_run(storage)
    for name in storage.names(folder):
        match = _FILE.fullmatch(name, len(folder))
        if match is None or not (everything or int(match[1]) in steps):
            continue
        if is_others is not None and (key := Key.parse(name)) is not None and is_others(key):
            continue
        (inputs if name.endswith(".in.parquet") else files).append((int(match[1]), name))
    return StageFiles(split, stage, sorted(files), sorted(inputs))


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
                if entry.is_dir(follow_symlinks=False) and not is_recording(entry.name):
                    pending += [(f"{folder}{entry.name}/", depth + 1)] if depth < DEEPEST else []
                else:
                    with suppress(FileNotFoundError):  # deleted since it was listed
                        yield Stat(folder + entry.name, entry.stat(follow_symlinks=False).st_size, "")
