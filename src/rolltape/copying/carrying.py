"""Carries out a plan: reads, verifies, writes and reads back, several files at once.

A copy that is new has no ``tape.json`` until all the rest is there: until then nobody takes it for a tape,
and ``copying.json`` says whose copy it will be. A copy that is a tape already grows step by step, inputs
before results, so that it is a shorter tape at every moment. Either way the next copy goes on where one was
ended.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby

from rolltape.codec.file import FORMAT, RecordingFile
from rolltape.codec.header import About
from rolltape.copying.file_roles import Role, role_of, step_of
from rolltape.copying.merging import Merge, still_missing, whole_lines
from rolltape.copying.planning import Conflict, Plan, unfinished_copy
from rolltape.errors import (
    CorruptFileError,
    MismatchError,
    MissingDependencyError,
    StepExistsError,
    StepMissingError,
    StorageError,
    UnknownAdapterError,
)
from rolltape.key import Key
from rolltape.storage import Stat
from rolltape.tape.manifest import NAME, read_manifest, write_manifest
from rolltape.tape.opening import UNFINISHED_COPY
from rolltape.tape.place import check_place, strange_line

AT_ONCE = 8
"""Files that are on their way at the same time."""
MOST_BYTES = 1 << 30
"""Bytes that are, unless one file alone is larger."""

Tick = Callable[[int], None]
"""Told how many bytes have been copied so far."""


@dataclass(slots=True)
class Done:
    """What was copied, and what was not."""

    files: list[str] = field(default_factory=list)
    bytes: int = 0
    lines: int = 0
    damaged: list[Conflict] = field(default_factory=list)
    """Files at the source that do not match their own checksums, or lack their inputs: not copied."""


def carry_out(plan: Plan, tick: Tick = lambda done: None) -> Done:
    """Do it. When this returns, all that was copied has been read back and is what it was."""
    done = Done()
    copy = _Copy(plan, done, tick)
    if plan.is_new:
        copy.begin()
    copy.add_lines(Role.FIRST_LINES)
    if plan.new_manifest:
        write_manifest(plan.target, plan.manifest, replace=True)
    for group in _groups(plan):
        copy.files(group)
    copy.add_lines(Role.LINES)
    if plan.is_new:
        copy.finish()
    done.files.sort()
    return done


def _groups(plan: Plan) -> Iterator[list[Stat]]:
    """Files that may appear in any order, one group after the other."""
    of_steps = [stat for stat in plan.missing if role_of(stat.name).is_of_a_step]
    rest = [stat for stat in plan.missing if not role_of(stat.name).is_of_a_step]

    def order(stat: Stat) -> tuple[int, int]:
        return (0 if plan.is_new else step_of(stat.name)), role_of(stat.name)

    for _, group in groupby(sorted(of_steps, key=order), order):
        yield list(group)
    if rest:
        yield rest


class _Copy:
    """One plan while it is carried out."""

    def __init__(self, plan: Plan, done: Done, tick: Tick) -> None:
        self._plan, self._done, self._tick = plan, done, tick
        self._refused: set[str] = set()
        self._room = _Room(MOST_BYTES)
        self._lock = threading.Lock()

    # -- the whole ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Say whose copy this will be, before anything else is there."""
        plan = self._plan
        plan.target.check_writable()
        text = json.dumps({"tape": plan.manifest.id}).encode() + b"\n"
        with suppress(StepExistsError):
            plan.target.publish(UNFINISHED_COPY, [text], replace=False)
        if unfinished_copy(plan.target) != plan.manifest.id:
            raise self._raced()

    def finish(self) -> None:
        """Now it is a tape."""
        plan = self._plan
        with suppress(StepExistsError):
            if plan.manifest.format == FORMAT:
                plan.target.publish(NAME, [plan.source.read(NAME)], replace=False)
            else:  # a copy has plain files only, which older readers may read
                write_manifest(plan.target, plan.manifest)
        found = read_manifest(plan.target)
        if found is None or found.id != plan.manifest.id:
            raise self._raced()
        plan.target.delete(UNFINISHED_COPY)

    def _raced(self) -> MismatchError:
        return MismatchError(
            "another tape was begun at this place while this one was being copied there",
            where=self._plan.target.location,
            hint="name a place of its own for each tape",
        )

    # -- lines -------------------------------------------------------------------------------------

    def add_lines(self, role: Role) -> None:
        plan, done = self._plan, self._done
        for name, merge in plan.lines.items():
            if role_of(name) is not role:
                continue
            if merge.damaged:
                what = f"{merge.damaged} of its lines do not match their checksums"
                done.damaged.append(Conflict(name, what))
            if merge.strange:
                done.damaged.append(
                    Conflict(name, f"{merge.strange} of its lines are of another tape or split")
                )
            done.lines += self._add(name, merge)

    def _add(self, name: str, merge: Merge) -> int:
        """All at once where the file is new, or one after the other: others may be adding lines as well.

        What another copy has added since this one was planned is not added again.
        """
        target = self._plan.target
        lines = merge.missing
        whole = [line + b"\n" for line in lines]
        if name in self._plan.replaced:
            target.publish(name, whole, replace=True)
            return len(lines)
        if lines and not target.exists(name):
            with suppress(StepExistsError):
                target.publish(name, whole, replace=False)
                return len(lines)
        added = still_missing(merge, whole_lines(bytes(target.read(name)))) if lines else ()
        for line in added:
            target.append(name, line)
        return len(added)

    # -- files -------------------------------------------------------------------------------------

    def files(self, group: Sequence[Stat]) -> None:
        """Copy these, several at once; raises what went wrong first, when no other is under way any more."""
        pool = ThreadPoolExecutor(min(AT_ONCE, len(group)), "rolltape-copy")
        try:
            waiting = [pool.submit(self._file, stat) for stat in group]
            wait(waiting, return_when=FIRST_EXCEPTION)
            for future in waiting:
                if future.done():
                    future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _file(self, stat: Stat) -> None:
        plan, name = self._plan, stat.name
        with self._room.taken(stat.size):
            try:
                data = plan.source.read(name)
                wrong = self._wrong_with(name, data)
            except StepMissingError:  # pruned since it was listed
                return
            if wrong is not None:
                with self._lock:
                    self._refused.add(name)
                    self._done.damaged.append(Conflict(name, wrong))
                return
            self._write(name, data)
        with self._lock:
            self._done.files.append(name)
            self._done.bytes += len(data)
            self._tick(self._done.bytes)

    def _write(self, name: str, data: bytes | bytearray) -> None:
        """Publish, and read back what came of it."""
        target = self._plan.target
        with suppress(StepExistsError):  # by another copy; then it must be the same
            target.publish(name, [data], replace=name in self._plan.replaced)
        if target.read(name) != data:
            raise StorageError(
                "what was read back is not what was copied",
                where=f"{target.location}/{name}",
                causes=["another process wrote there at the same time", "the disk, share or store failed"],
                hint="look at it with: rolltape check; then copy again",
            )

    def _wrong_with(self, name: str, data: bytes | bytearray) -> str | None:
        """Why a file is not to be copied, if there is a reason."""
        key = Key.parse(name)
        if key is None:
            wrong = strange_line(self._plan.source, name, bytes(data))
            return wrong and f"it {wrong}"
        try:
            about = self._verified(key, memoryview(data))
        except CorruptFileError as error:
            return error.what
        if key.inputs or about.inputs is None:
            return None
        inputs = replace(key, inputs=True).path
        if inputs not in self._refused and self._plan.target.exists(inputs):
            return None
        if inputs not in self._refused and self._plan.source.exists(inputs):
            # It was recorded while the source was listed: inputs are there before their result.
            self._write(inputs, self._plan.source.read(inputs))
            return None
        return "its inputs were recorded, and their file is missing or damaged"

    def _verified(self, key: Key, data: memoryview) -> About:
        """What a recording says of itself, if every checksum in it is right and it is in its place."""
        file = RecordingFile(lambda spans: [data[at : at + size] for at, size in spans], len(data), data)
        check_place(self._plan.source, key, file.about)
        with suppress(UnknownAdapterError, MissingDependencyError):  # checksums come first
            file.verify()
        return file.about


class _Room:
    """How much may be in memory at once; one file alone may always."""

    def __init__(self, most: int) -> None:
        self._most, self._used = most, 0
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._used == 0 or self._used + size <= self._most)
            self._used += size
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._changed.notify_all()
