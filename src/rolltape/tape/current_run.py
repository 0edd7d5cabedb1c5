"""Which run a tape holds: a replay that rewrites its tape ``out`` begins a new one, the others continue it.

Every recording names the run that wrote it; on a tape that was never rewritten that is the tape's own id. A
run that rewrites says so first, in ``runs.jsonl``: from that line on, what other runs left behind no longer
counts. Each of its processes adds a line of its own, so that they need not know of each other: all that read
the lines in their order come to the same answer. A line begins another run if its rank has joined the current
one already, if the number of ranks is another one, or if it comes from another launch.

Then each process deletes what others left of its own shard, which nobody else writes, and adds that it has.
When every rank has, nothing of another run is left; until then, readers ask each recording.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rolltape.errors import CorruptFileError, RolltapeError, StepMissingError
from rolltape.key import Key
from rolltape.storage import Storage
from rolltape.tape.checked_lines import check_line, checked_line, lines_of
from rolltape.tape.place import check_note
from rolltape.tape.recording import Recording

NAME = "runs.jsonl"

_LAUNCH = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "RAY_JOB_ID")
"""Variables that the processes of one launch share."""


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """The run that the lines of ``runs.jsonl`` lead to."""

    id: str
    world_size: int
    launch: str
    joined: frozenset[int]
    """The ranks that have opened the tape."""
    cleared: frozenset[int] = frozenset()
    """Those that have deleted what was left of their shards."""

    @property
    def is_alone(self) -> bool:
        """Whether nothing of another run is on the tape any more."""
        return len(self.cleared) == self.world_size


def fold(lines: Iterable[Mapping[str, Any]]) -> CurrentRun | None:
    """The run that these lines lead to; None without lines.

    >>> opened = {"rank": 0, "world_size": 2, "launch": ""}
    >>> run = fold([{"run": "a", **opened}, {"run": "b", **opened, "rank": 1}, {"run": "c", **opened}])
    >>> run.id, sorted(run.joined)
    ('c', [0])
    """
    run: CurrentRun | None = None
    for line in lines:
        rank, world_size, launch = line["rank"], line["world_size"], line["launch"]
        if line.get("cleared"):
            if run is not None and run.id == line["run"]:
                run = replace(run, cleared=run.cleared | {rank})
        elif run is None or rank in run.joined or (run.world_size, run.launch) != (world_size, launch):
            run = CurrentRun(line["run"], world_size, launch, frozenset({rank}))
        else:
            run = replace(run, joined=run.joined | {rank})
    return run


def current_run(storage: Storage) -> CurrentRun | None:
    """The run that a tape holds; None if it was never rewritten as a whole."""
    return fold(node for node in read_lines(storage) if "run" in node)


def read_lines(storage: Storage) -> Iterator[dict[str, Any]]:
    """What every complete line of ``runs.jsonl`` says: of a run, or of a session."""
    try:
        text = bytes(storage.read(NAME))
    except StepMissingError:
        return
    for number, line in lines_of(text):
        where = f"{storage.location}/{NAME}, line {number}"
        body = check_line(line, where)
        if body is not None:
            node = _read_line(body, where)
            check_note(storage, node, where)
            yield node


def _read_line(body: bytes, where: str) -> dict[str, Any]:
    """What a line with a right checksum says, if that can be: anyone can write a checksum."""
    try:
        node: dict[str, Any] = json.loads(b"{" + body)
        names = ("run", "launch") if "run" in node else ("session",) if "session" in node else ()
        if names:
            numbers, texts = (node["rank"], node["world_size"]), [node[name] for name in names]
            if not all(type(n) is int for n in numbers) or not all(type(text) is str for text in texts):
                raise TypeError("a line about a run has other values than it should have")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFileError(
            f"a line about a run has a right checksum and cannot be read: {error!r:.200}",
            where=where,
            causes=["another tool wrote or edited the file"],
        ) from None
    return node


def begin_run(storage: Storage, tape: str, rank: int, world_size: int) -> str:
    """Begin a run that rewrites the tape, or join the one that another rank has begun; its id."""
    launch = _launch(os.environ)
    mine = uuid.UUID(bytes=os.urandom(16), version=4).hex
    here = {"rank": rank, "world_size": world_size, "launch": launch, "tape": tape}
    _add(storage, {"run": mine, **here})
    run = current_run(storage)
    if run is None or run.launch != launch:  # another launch has begun since: this one's results do not count
        return mine
    left = list(_left_behind(storage, rank, world_size))
    storage.delete_all([*(key.commit for key in left if key.is_shard), *(key.path for key in left)])
    _add(storage, {"run": run.id, **here, "cleared": True})
    return run.id


def other_run(storage: Storage) -> Callable[[Key], bool] | None:
    """Tells whether a recording is another run's; None if none on this tape is."""
    run = current_run(storage)
    if run is None or run.is_alone:
        return None

    def is_others(key: Key) -> bool:
        try:
            return Recording(storage, key).about.run != run.id
        except RolltapeError:  # a damaged file is told by whoever reads it
            return False

    return is_others


def _left_behind(storage: Storage, rank: int, world_size: int) -> list[Key]:
    """The recordings of this shard, which has written nothing yet, and of worlds of another size."""
    splits = list(storage.folders(""))
    folders = [folder for split in splits for folder in storage.folders(split)]
    keys = [key for folder in folders for name in storage.names(folder) if (key := Key.parse(name))]
    return [key for key in keys if key.rank == rank or key.world_size != world_size]


def _launch(environ: Mapping[str, str]) -> str:
    said = "\n".join(environ.get(name, "") for name in _LAUNCH)
    return hashlib.blake2b(said.encode(), digest_size=4).hexdigest() if said.strip() else ""


def _add(storage: Storage, node: Mapping[str, Any]) -> None:
    storage.append(NAME, checked_line(node))
