"""Which processes are writing the shards of a tape now: a line in ``runs.jsonl`` for each that begins to.

A launch that died leaves shards behind, and nothing in a file tells them from those that the ranks of this
launch write. So each process has a name of its own, its session; every shard says which session wrote it, and
a rank says before its first live call which session is its own from then on. What an earlier session of that
rank wrote is of a launch that is over.
"""

from __future__ import annotations

import os
import uuid

from rolltape.storage import Storage
from rolltape.tape.checked_lines import checked_line
from rolltape.tape.current_run import NAME, read_lines


def _new() -> str:
    return uuid.UUID(bytes=os.urandom(16), version=4).hex[:16]


_process = _new()


def _after_fork() -> None:
    global _process
    _process = _new()


os.register_at_fork(after_in_child=_after_fork)


def this_session() -> str:
    """The session of this process."""
    return _process


def new_attempt(session: str) -> str:
    """A name for one writing of a shard."""
    return f"{session}-{_new()}"


def session_of(attempt: str) -> str:
    """The session that wrote a shard.

    >>> session_of("5be3a1f05be3a1f0-0123456789abcdef")
    '5be3a1f05be3a1f0'
    """
    return attempt.partition("-")[0]


def announce(storage: Storage, tape: str, session: str, rank: int, world_size: int) -> None:
    """Say that this session writes the shards of a rank of the tape from now on, and no other does."""
    line = {"session": session, "rank": rank, "world_size": world_size, "tape": tape}
    storage.append(NAME, checked_line(line))


def vouch(storage: Storage, tape: str, session: str, rank: int, world_size: int) -> None:
    """Say that another session writes shards of a rank now, too: it was seen to."""
    line = {"session": session, "rank": rank, "world_size": world_size, "also": True, "tape": tape}
    storage.append(NAME, checked_line(line))


def live_sessions(storage: Storage, world_size: int) -> dict[int, set[str]]:
    """The sessions that write the shards of each rank now."""
    found: dict[int, set[str]] = {}
    for node in read_lines(storage):
        if "session" not in node or node["world_size"] != world_size:
            continue
        rank, session = node["rank"], node["session"]
        if node.get("also"):
            found.setdefault(rank, set()).add(session)
        else:
            found[rank] = {session}
    return found
