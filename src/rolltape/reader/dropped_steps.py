"""``dropped.jsonl``: steps that were dropped from a tape on purpose, so that a check does not miss them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from rolltape.errors import MemoryLimitError, RolltapeError, StepMissingError, StorageError
from rolltape.key import Key
from rolltape.steps import StepSelector
from rolltape.storage import Storage
from rolltape.tape.checked_lines import parse_line
from rolltape.tape.place import strange_note

NAME = "dropped.jsonl"


@dataclass(frozen=True, slots=True)
class Dropped:
    """Steps that are not on the tape, and are not to be."""

    steps: str
    """As in ``0-9,20``."""
    split: str | None = None
    stage: str | None = None
    """None for all."""
    others: bool = False
    """True if ``steps`` are those that were kept, and all others were left behind."""

    def holds(self, key: Key) -> bool:
        """Whether a recording was among them."""
        if self.split not in (None, key.split) or self.stage not in (None, key.stage):
            return False
        return (key.step in StepSelector.parse(self.steps)) != self.others


def note_dropped(storage: Storage, dropped: Dropped, tape: str) -> None:
    """Keep on the tape of this id what was dropped."""
    storage.append(NAME, json.dumps(asdict(dropped) | {"tape": tape}).encode())


def read_dropped(storage: Storage) -> list[Dropped]:
    """What was dropped from a tape; lines that cannot be read, or are of another tape, say nothing."""
    try:
        lines = bytes(storage.read(NAME)).splitlines()
    except (StepMissingError, StorageError, MemoryLimitError):  # nothing was dropped, or nothing says so
        return []
    return [one for line in lines if line and (one := parse_dropped(storage, line)) is not None]


def parse_dropped(storage: Storage, line: bytes) -> Dropped | None:
    """What a line of a tape says; None if it cannot be read, or is of another one."""
    try:
        node = parse_line(line.decode("utf-8", "replace"))
        if strange_note(storage, {"tape": node.pop("tape", None)}) is not None:
            return None
        one = Dropped(**node)
        one.holds(Key(step=0))
    except (ValueError, TypeError, AttributeError, RecursionError, RolltapeError):
        return None
    return one
