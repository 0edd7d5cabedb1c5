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
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile

from rolltape.errors import NotATapeError, TapeNotFoundError
from rolltape.key import Key
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.storage import Storage, is_url, joined, storage_at
from rolltape.tape.current_run import NAME as RUNS
from rolltape.tape.current_run import other_run
from rolltape.tape.manifest import NAME
from rolltape.tape.opening import UNFINISHED_COPY, not_found
from rolltape.tape.shards import Shortfall, judged
from rolltape.tape.step_index import call_order, recordings

NOTES = ("noise.json", "accepted.jsonl", "replayed.jsonl", "dropped.jsonl", RUNS, UNFINISHED_COPY)
"""Files beside the recordings: the noise floor, who accepted what, what a replay was given, which steps were
dropped on purpose, which run wrote the tape last, and that it is a copy which is not whole yet.
"""

DEEPEST = 4
"""How many folders down tapes are looked for."""

MOST_FOLDERS = 20_000
"""How many folders are looked into before the search gives up."""

_FILE = re.compile(
    r"step_([0-9]{6}|[1-9][0-9]{6,18})(\.c[1-9][0-9]{0,18}|\.k[^./]+)?(\.r[0-9]+of[0-9]+)?(\.in)?\.parquet"
)
_SHARD = re.compile(r"\.r[0-9]+of[0-9]+\.")


def is_tape(path: str) -> bool:
    """Whether there is a tape, readable or not."""
    return storage_at(path).exists(NAME) if is_url(path) else os.path.isfile(os.path.join(path, NAME))


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
    if not (is_url(root) or os.path.isdir(root)):
        raise TapeNotFoundError("there is no such directory", where=os.path.abspath(root))
    storage = storage_at(root)
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
    if is_url(folder):
        return sorted(joined(folder, inner.rstrip("/")) for inner in storage_at(folder).folders(""))
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
    partial: list[tuple[int, str]] = field(default_factory=list)
    """The same for steps that are not complete: some ranks have recorded them, and others not."""
    shortfalls: list[Shortfall] = field(default_factory=list)
    """What these lack, in order."""
    commits: list[tuple[int, str]] = field(default_factory=list)
    """The files that say that a step is complete, or no longer is."""

    @property
    def everything(self) -> StageFiles:
        """The same, with the steps that are not complete among the others."""
        return replace(self, files=sorted([*self.files, *self.partial]))

    def short(self, step: int) -> Shortfall | None:
        """What a step lacks; None if it is complete, or not there at all."""
        return next((one for one in self.shortfalls if one.key.step == step), None)

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
    storage: Storage, split: str | None = None, stage: str | None = None, steps: StepSelector = ALL_STEPS
) -> Iterator[StageFiles]:
    """Every stage of every split that is asked for, with its recordings of these steps."""
    # What is complete is judged by all recordings of a stage, whichever are asked for.
    for split_name in _names(storage, "") if split is None else [split]:
        for stage_name in _names(storage, f"{split_name}/") if stage is None else [stage]:
            yield _listed(storage, split_name, stage_name, steps)


def _names(storage: Storage, folder: str) -> list[str]:
    """The folders in this one that can be a split or a stage, by name."""
    names = sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in storage.folders(folder))
    return [name for name in names if is_name(name)]


def is_name(name: str) -> bool:
    """Whether a folder's name can be a split's or a stage's."""
    return Key.parse(f"{name}/{name}/step_000000.parquet") is not None


def _listed(storage: Storage, split: str, stage: str, steps: StepSelector) -> StageFiles:
    folder = f"{split}/{stage}/"
    files: list[tuple[int, str]] = []
    inputs: list[tuple[int, str]] = []
    commits: list[tuple[int, str]] = []
    shards: list[Key] = []
    is_others = other_run(storage)
    for name in storage.names(folder):
        match = _FILE.fullmatch(name, len(folder))
        if match is None:
            if name.endswith((".commit", ".void")) and (key := Key.parse_commit(name)) is not None:
                commits.append((key.step, name))
            continue
        is_input = name.endswith(".in.parquet")
        may_be_shard = _SHARD.search(name, len(folder)) is not None  # else no key is made of it
        key = Key.parse(name) if may_be_shard or is_others is not None else None
        if may_be_shard and key is None:  # of more ranks than there can be, say
            continue
        if is_others is not None and key is not None and is_others(key):
            continue
        if key is not None and key.is_shard and not is_input:
            shards.append(key)
        (inputs if is_input else files).append((int(match[1]), name))
    found = StageFiles(split, stage, sorted(files), sorted(inputs), commits=sorted(commits))
    if shards:
        short = judged(storage, split, stage, shards, {name for _, name in commits})
        found = _apart(found, sorted(short, key=lambda one: call_order(one.key)))
    return found if steps == ALL_STEPS else _of_steps(found, steps)


def _apart(found: StageFiles, short: list[Shortfall]) -> StageFiles:
    """The files, with those of steps that are not complete apart: all calls of such a step are."""
    lacking = {(one.key.step, one.key.world_size) for one in short}
    files: list[tuple[int, str]] = []
    partial: list[tuple[int, str]] = []
    steps = {step for step, _ in lacking}
    for step, name in found.files:
        key = Key.parse(name) if step in steps else None
        whole = key is None or (step, key.world_size) not in lacking
        (files if whole else partial).append((step, name))
    return replace(found, files=files, partial=partial, shortfalls=short)


def _of_steps(found: StageFiles, steps: StepSelector) -> StageFiles:
    def kept(files: list[tuple[int, str]]) -> list[tuple[int, str]]:
        return [one for one in files if one[0] in steps]

    return StageFiles(
        found.split,
        found.stage,
        kept(found.files),
        kept(found.inputs),
        kept(found.partial),
        [one for one in found.shortfalls if one.key.step in steps],
        kept(found.commits),
    )
