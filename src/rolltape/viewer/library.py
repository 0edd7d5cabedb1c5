"""The tapes that are being looked at, and what is on them now: a run may still be writing."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rolltape.cli.tapes import OpenTape, is_name, open_tape, order, shelves
from rolltape.key import Key, metrics_path
from rolltape.tape.metrics import read_metrics
from rolltape.tape.missing import explain_missing
from rolltape.tape.recording import Recording
from rolltape.viewer.tokenizer import Decode

if TYPE_CHECKING:
    from rolltape.viewer.rows import Rows

MOST_OPEN = 32
"""How many stages of steps stay open; what was read of them stays in memory."""
SETTLED = 2.0
"""Seconds after which an unchanged folder is not listed again: the clocks of file systems are coarse."""


@dataclass(slots=True)
class Listing:
    """The recordings of one stage."""

    changed: int
    """When the folder last changed, as it says."""
    listed: float
    """When it was listed."""
    names: dict[int, list[str]] = field(default_factory=dict)
    """By step, in order."""

    @property
    def steps(self) -> list[int]:
        return list(self.names)


class Library:
    """Some tapes, numbered from 0, and the tokenizer of their model where one was named."""

    def __init__(self, paths: Sequence[str], decode: Decode | None = None) -> None:
        self.tapes: list[OpenTape] = [open_tape(path) for path in paths]
        self.decode = decode
        self._listed: dict[tuple[int, str, str], Listing] = {}
        self._places: dict[tuple[int, str, str], tuple[bool, float, str]] = {}
        self._open: OrderedDict[tuple[object, ...], Rows] = OrderedDict()

    def name(self, tape: int) -> str:
        """What a tape is called: the end of its path that tells it from the others."""
        parts = [os.path.abspath(one.path).split(os.sep) for one in self.tapes]
        mine = parts[tape]
        for length in range(1, len(mine)):
            if sum(other[-length:] == mine[-length:] for other in parts) == 1:
                return "/".join(mine[-length:])
        return self.tapes[tape].path

    def splits(self, tape: int) -> list[str]:
        """The splits, ``train`` first; one that has only metrics counts."""
        storage = self.tapes[tape].storage
        names = [name for folder in storage.folders("") if is_name(name := folder.rstrip("/"))]
        found = [name for name in names if storage.exists(metrics_path(name)) or self.stages(tape, name)]
        return sorted(found, key=lambda name: (name != "train", name))

    def stages(self, tape: int, split: str) -> dict[str, Listing]:
        """The stages that have recordings, in the order in which a step computes them."""
        storage = self.tapes[tape].storage
        folders = [folder.rstrip("/").rsplit("/", 1)[-1] for folder in storage.folders(f"{split}/")]
        found = {name: self._listing(tape, split, name) for name in folders if is_name(name)}
        there = [name for name, listing in found.items() if listing.names]
        return {name: found[name] for name in sorted(there, key=lambda name: self._place(tape, split, name))}

    def metrics(self, tape: int, split: str) -> dict[int, dict[str, object]]:
        """What was logged, by step."""
        return read_metrics(self.tapes[tape].storage, split)

    def rows(self, tape: int, split: str, stage: str, step: int, *, keep: bool = True) -> Rows:
        """What a stage recorded at a step: all calls, all shards.

        ``keep`` it open for the next page; what is not kept is no other thread's either.
        """
        from rolltape.viewer.rows import Rows  # the first page of a run does without

        storage = self.tapes[tape].storage
        names = self._listing(tape, split, stage).names.get(step, [])
        keys = sorted((key for name in names if (key := Key.parse(name)) is not None), key=order)
        if not keys:
            raise explain_missing(storage, Key(split=split, stage=stage, step=step))
        recordings = [Recording(storage, key) for key in keys]
        if not keep:
            return Rows(recordings)
        name = tape, tuple(storage.stat(key.path) for key in keys)  # a run in mode rewrite replaces files
        rows = self._open.pop(name, None) or Rows(recordings)
        self._open[name] = rows
        while len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
        return rows

    def baseline(self, tape: int) -> int | None:
        """Which of the other tapes this one was replayed from."""
        wanted = (self.tapes[tape].manifest.baseline or {}).get("id")
        ids = [one.manifest.id for one in self.tapes]
        return ids.index(wanted) if wanted in ids and wanted != ids[tape] else None

    def version(self) -> str:
        """Changes whenever something lands on one of the tapes."""
        marks: list[str] = []
        for at, tape in enumerate(self.tapes):
            for split in self.splits(at):
                marks += [
                    f"{len(listing.names)}.{listing.changed:x}" for listing in self.stages(at, split).values()
                ]
                stat = tape.storage.stat(metrics_path(split))
                marks.append(str(stat.size if stat else 0))
        return "-".join(marks)

    def _listing(self, tape: int, split: str, stage: str) -> Listing:
        storage = self.tapes[tape].storage
        try:
            changed = os.stat(f"{storage.location}/{split}/{stage}").st_mtime_ns
        except OSError:
            return Listing(0, 0.0)
        known = self._listed.get((tape, split, stage))
        if known is not None and known.changed == changed and known.listed - changed / 1e9 > SETTLED:
            return known
        listing = Listing(changed, time.time())
        for shelf in shelves(storage, split, stage):
            for step, name in shelf.files:
                listing.names.setdefault(step, []).append(name)
        self._listed[tape, split, stage] = listing
        return listing

    def _place(self, tape: int, split: str, stage: str) -> tuple[bool, float, str]:
        """Where in a step a stage comes, which its recordings say."""
        if (tape, split, stage) not in self._places:
            names = next(iter(self._listing(tape, split, stage).names.values()))
            key = Key.parse(names[0])
            position = Recording(self.tapes[tape].storage, key).about.get("position") if key else None
            number = float(position) if isinstance(position, int) else float("inf")
            self._places[tape, split, stage] = (stage != "rollout", number, stage)
        return self._places[tape, split, stage]
