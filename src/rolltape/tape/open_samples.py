"""Finished samples of a step that is not recorded yet: on the tape as they finish.

A run that is killed in the middle of a step finds them there when it makes the same call again, and generates
the others only. They lie in ``samples.open/``, in small files of a second's samples or less, and go when the
step itself is recorded. They are no recording: nothing is replayed from them, and no other step gets them.

``OpenStep`` is one call with its samples; ``OpenSteps`` writes, finds and removes the files of all of them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from rolltape.batch import dismantle
from rolltape.batch.json_values import Json
from rolltape.codec.file import RecordingFile, decoding, encode
from rolltape.codec.header import About
from rolltape.codec.pack import Packed, pack
from rolltape.errors import CorruptFileError, MisplacedFileError, RolltapeError
from rolltape.key import Key, is_of_open_step, open_folder
from rolltape.storage import Storage
from rolltape.tape.place import check_place

log = logging.getLogger("rolltape")

EVERY = 0.3
"""Seconds between two files of a call, at least: what finishes meanwhile goes into one."""
_LONGEST = 200
"""Bytes of a file name that say of which call it is; a longer name of a call is shortened to its digest."""
_READERS = 8
_FILE = re.compile(
    r"(?P<call>step_(?P<step>[0-9]{6,19}).*)\.(?P<writer>[0-9a-f]{12})-[0-9]+x(?P<count>[0-9]+)\.parquet"
)


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file with finished samples of one call, as its name tells."""

    name: str
    split: str
    stage: str
    call: str
    """The call and the rank, as the name of the recording has them."""
    step: int
    writer: str
    samples: int

    @staticmethod
    def parse(name: str) -> OpenFile | None:
        """The file of this name; None for one that holds no finished samples.

        >>> OpenFile.parse("samples.open/train/rollout/step_000012.c1.0123456789ab-0x37.parquet").samples
        37
        """
        if not is_of_open_step(name):
            return None
        _, split, stage, file = name.split("/")
        match = _FILE.fullmatch(file)
        if match is None:
            return None
        return OpenFile(
            name, split, stage, match["call"], int(match["step"]), match["writer"], int(match["count"])
        )

    @property
    def key(self) -> Key | None:
        """The recording that it will be part of; None where the name of the call was too long to tell."""
        return Key.parse(f"{self.split}/{self.stage}/{self.call}.parquet")


def open_files(storage: Storage, split: str, stage: str) -> list[OpenFile]:
    """The files with finished samples of a stage, in their order."""
    found = (OpenFile.parse(name) for name in storage.names(open_folder(split, stage)))
    return sorted((one for one in found if one is not None), key=lambda one: one.name)


def all_open_files(storage: Storage) -> list[OpenFile]:
    """The same of all stages of a tape."""
    found: list[OpenFile] = []
    for split in storage.folders("samples.open/"):
        for stage in storage.folders(split):
            _, named, inner, _ = stage.split("/")
            found += open_files(storage, named, inner)
    return found


@dataclass(frozen=True, slots=True)
class OpenCall:
    """What has finished of a call that was not recorded when it did.

    >>> print(OpenCall("train", "rollout", 12, "step_000012", 37, ()))
    37 finished samples of train/rollout step 12
    """

    split: str
    stage: str
    step: int
    call: str
    samples: int
    files: tuple[str, ...]
    recorded: bool = False
    """Whether the call is on the tape by now, and these are of no use."""

    def __str__(self) -> str:
        samples = "1 finished sample" if self.samples == 1 else f"{self.samples:,} finished samples"
        part = self.call.removeprefix(f"step_{self.step:06d}").lstrip(".")
        return f"{samples} of {self.split}/{self.stage} step {self.step}" + (f" ({part})" if part else "")


def open_calls(storage: Storage) -> list[OpenCall]:
    """What has finished of the calls that are not recorded, and what is left of those that are."""
    calls: dict[tuple[str, str, int, str], list[OpenFile]] = {}
    for one in all_open_files(storage):
        calls.setdefault((one.split, one.stage, one.step, one.call), []).append(one)
    found = []
    for (split, stage, step, call), files in sorted(calls.items()):
        key = files[0].key
        recorded = key is not None and is_recorded(storage, key)
        samples, names = sum(one.samples for one in files), tuple(one.name for one in files)
        found.append(OpenCall(split, stage, step, call, samples, names, recorded))
    return found


def is_recorded(storage: Storage, key: Key) -> bool:
    """Whether a call is on the tape, by all of its ranks."""
    return storage.exists(key.commit if key.is_shard else key.path)


@dataclass(frozen=True, slots=True)
class Kept:
    """A finished sample."""

    name: str
    given: Json
    """Digests of what it was made of; None where nobody says."""
    data: memoryview
    """The value, as a recording of its own."""
    random: Json
    """The random state it left behind; None where it drew nothing, or that cannot be told."""
    file: str

    def value(self) -> Any:
        """The value, bit for bit as it was."""
        with decoding():
            return RecordingFile(lambda spans: [], len(self.data), self.data).value()


@dataclass(frozen=True, slots=True)
class Finished:
    """A sample that has finished and is to be written."""

    name: str
    given: Json
    packed: Packed
    """Its value, copied."""
    random: Json


def copied(value: Any) -> Packed:
    """A copy of a value, as it is now."""
    return pack(dismantle(value))


def read_open_file(storage: Storage, name: str, key: Key | None) -> tuple[About, list[Kept]]:
    """What is in a file of a call, as far as the name tells which; raises what is wrong with it."""
    data = memoryview(bytes(storage.read(name)))
    file = RecordingFile(lambda spans: [], len(data), data)
    about = file.about
    split = str(about.get("split")).removeprefix("samples.open/")
    if about.get("holds") != "samples" or split == about.get("split"):
        raise MisplacedFileError("this holds no finished samples of an open step")
    if key is not None:
        check_place(storage, key, About({**about, "split": split}))
    file.check_sums()
    with decoding():
        value = file.value()
    try:
        rows = zip(value["name"], value["given"], value["sample"], value["random"], strict=True)
        found = [
            Kept(str(named), _json(given), memoryview(sample), _json(random), name)
            for named, given, sample, random in rows
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(f"its samples cannot be read: {error!r}") from None
    return about, found


def _joined(chunks: Sequence[Any]) -> bytes:
    return b"".join(bytes(memoryview(chunk)) for chunk in chunks)


def _json(text: str) -> Json:
    return json.loads(text) if text else None


def _text(node: Json) -> str:
    return "" if node is None else json.dumps(node, ensure_ascii=False, separators=(",", ":"))


def _place(key: Key) -> dict[str, Json]:
    """What a file says of where it belongs. No recording has such a split, wherever the file is moved to."""
    return {
        "split": f"samples.open/{key.split}", "stage": key.stage, "step": key.step, "call": key.call,
        "rank": key.rank, "world_size": key.world_size,
    }  # fmt: skip


def _stem(key: Key) -> str:
    """What the files of a call are called, up to their writer."""
    file = key.path.rpartition("/")[2].removesuffix(".parquet")
    if len(file) <= _LONGEST:
        return file
    return f"step_{key.step:06d}.h{hashlib.blake2b(file.encode(), digest_size=16).hexdigest()}"


def _of_rank_0(key: Key | None) -> Key | None:
    return replace(key, rank=0) if key is not None and key.is_shard else None


@dataclass(slots=True)
class _Group:
    """What has finished of a call since its last file."""

    about: Mapping[str, Json]
    samples: list[Finished] = field(default_factory=list)


class OpenSteps:
    """The files of all open steps of one process. Any number of threads may call at once."""

    def __init__(self, storage: Storage, writer: str, *, background: bool, max_pending_bytes: int) -> None:
        self._storage = storage
        self._writer = writer
        self._background = background
        self._limit = max_pending_bytes
        self._changed = threading.Condition()
        self._waiting: dict[Key, _Group] = {}
        self._bytes = 0
        self._writing: frozenset[Key] = frozenset()
        self._thread: threading.Thread | None = None
        self._hurry = 0
        """How many wait for what is waiting to be written."""
        self._written = 0
        self._own: list[str] = []
        """The files that this process has written, and has not removed."""
        self._cleaned: set[tuple[str, str]] = set()
        """The stages of which was removed what processes before this one have left behind."""
        self._folding: list[tuple[Key, Key]] = []
        """Calls that are recorded: what their files are named after, and their recordings."""
        self._warned: set[Key] = set()

    # -- writing ---------------------------------------------------------------------------------------

    def add(self, key: Key, about: Mapping[str, Json], sample: Finished) -> None:
        """Have a sample written, within a moment; waits while too much is pending."""
        with self._changed:
            nbytes = sample.packed.nbytes
            self._changed.wait_for(lambda: not self._bytes or self._bytes + nbytes <= self._limit)
            self._waiting.setdefault(key, _Group(about)).samples.append(sample)
            self._bytes += nbytes
            if self._background and self._thread is None:
                self._thread = self._start()
        if not self._background or self._thread is None:
            self._write_all()

    def wait(self, key: Key | None = None) -> None:
        """Wait until what has finished of a call, or of all, is written."""
        with self._changed:
            self._hurry += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_pending(key))
            self._hurry -= 1

    def _is_pending(self, key: Key | None) -> bool:
        if key is None:
            return bool(self._waiting or self._writing)
        return key in self._waiting or key in self._writing

    def _start(self) -> threading.Thread | None:
        thread = threading.Thread(target=self._work, name="rolltape-samples", daemon=False)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down, or there are too many threads: do without
            return None
        return thread

    def _work(self) -> None:
        while True:
            begun = time.monotonic()
            self._write_all()
            with self._changed:
                rest = EVERY - (time.monotonic() - begun)
                self._changed.wait_for(lambda: self._hurry, timeout=max(rest, 0.0))
                if not self._waiting:
                    self._thread = None
                    return

    def _write_all(self) -> None:
        with self._changed:
            groups, self._waiting = self._waiting, {}
            self._writing |= frozenset(groups)
        for key, group in groups.items():
            try:
                self._write(key, group)
            except Exception as error:
                self._not_kept(key, len(group.samples), error)
        with self._changed:
            self._writing -= frozenset(groups)
            self._bytes -= sum(one.packed.nbytes for group in groups.values() for one in group.samples)
            self._changed.notify_all()

    def _write(self, key: Key, group: _Group) -> None:
        samples = group.samples
        rows = {
            "name": [one.name for one in samples],
            "given": [_text(one.given) for one in samples],
            "random": [_text(one.random) for one in samples],
            "sample": [_joined(encode(one.packed)) for one in samples],
        }
        with self._changed:
            number, self._written = self._written, self._written + 1
        folder = open_folder(key.split, key.stage)
        name = f"{folder}{_stem(key)}.{self._writer}-{number:06d}x{len(samples)}.parquet"
        chunks = encode(pack(dismantle(rows)), **_place(key), **group.about, holds="samples")
        self._storage.publish(name, chunks, replace=True)
        with self._changed:
            self._own.append(name)

    def _not_kept(self, key: Key, count: int, error: BaseException) -> None:
        """The run goes on: what is lost is only what a killed one would not have to generate again."""
        with self._changed:
            new = key not in self._warned
            self._warned.add(key)
        if new:
            log.warning(
                "%d finished samples of %s could not be kept; if this run is killed before the step is "
                "recorded, they are generated again: %s",
                count, key.path, error,
            )  # fmt: skip

    # -- finding ---------------------------------------------------------------------------------------

    def find(self, key: Key, is_over: Callable[[Key], bool]) -> list[tuple[About, list[Kept]]]:
        """What a killed run has left of a call. What is damaged is named, and left out.

        The first time, what was left of calls that are recorded by now (``is_over``) is removed.
        """
        self.wait(key)
        names = self._named(key, is_over)
        found: list[tuple[About, list[Kept]]] = []
        with ThreadPoolExecutor(min(_READERS, len(names) or 1)) as pool:
            for name, result in zip(names, pool.map(lambda name: self._read(name, key), names), strict=True):
                if isinstance(result, Exception):
                    log.warning(
                        "%s/%s cannot be read, and its samples are generated again: %s",
                        self._storage.location, name, result,
                    )  # fmt: skip
                else:
                    found.append(result)
        return found

    def _read(self, name: str, key: Key) -> tuple[About, list[Kept]] | Exception:
        try:
            return read_open_file(self._storage, name, key)
        except RolltapeError as error:
            return error

    def _named(self, key: Key, is_over: Callable[[Key], bool]) -> list[str]:
        """The files of a call."""
        stage = (key.split, key.stage)
        files = self._listed(stage)
        with self._changed:
            first = stage not in self._cleaned
            self._cleaned.add(stage)
        if first:
            others = {one.call: one.key for one in files if one.call != _stem(key)}
            over = {call for call, other in others.items() if other is not None and is_over(other)}
            self._delete([one.name for one in files if one.call in over])
        return [one.name for one in files if one.call == _stem(key)]

    def _listed(self, stage: tuple[str, str]) -> list[OpenFile]:
        """The files of a stage; of those of other processes none, while the store does not answer."""
        with self._changed:
            own = [one for one in map(OpenFile.parse, self._own) if one is not None]
        mine = [one for one in own if (one.split, one.stage) == stage]
        if getattr(getattr(self._storage, "files", self._storage), "away", False):
            return mine
        try:
            return open_files(self._storage, *stage)
        except RolltapeError as error:
            log.warning("what other processes have left of %s cannot be listed: %s", "/".join(stage), error)
            return mine

    # -- removing --------------------------------------------------------------------------------------

    def fold(self, key: Key, recording: Key) -> None:
        """A call is recorded: what was kept of it goes, with ``sweep``."""
        with self._changed:
            # A shard counts for nothing until all are there: it may have to be made again of its samples.
            dropped = None if recording.is_shard else self._waiting.pop(key, None)
            if dropped is not None:
                self._bytes -= sum(one.packed.nbytes for one in dropped.samples)
            self._folding.append((key, recording))
            self._changed.notify_all()

    def sweep(self, is_over: Callable[[Key], bool]) -> None:
        """Remove what was kept of the calls that are recorded; of several ranks, by all of them."""
        with self._changed:
            folding, self._folding = self._folding, []
        for key, recording in folding:
            if is_over(recording):
                self.drop(key)
            else:
                with self._changed:
                    self._folding.append((key, recording))

    def drop(self, key: Key, chosen: Callable[[OpenFile], bool] | None = None) -> None:
        """Remove what was kept of a call, by whatever process and rank, or those of its files in this rank
        that are ``chosen``.
        """
        self.wait(key)
        files = self._listed((key.split, key.stage))
        if chosen is not None:
            gone = [one for one in files if one.call == _stem(key) and chosen(one)]
        else:  # who ends first does not see that the last rank is done
            first = replace(key, rank=0)
            gone = [one for one in files if one.call == _stem(key) or _of_rank_0(one.key) == first]
        self._delete([one.name for one in gone])

    def _delete(self, names: Sequence[str]) -> None:
        with self._changed:
            self._own = [name for name in self._own if name not in set(names)]
        try:
            if names:
                self._storage.delete_all(names)
        except RolltapeError as error:  # they are passed over, and removed another time
            log.warning("%d files of a step that is recorded could not be removed: %s", len(names), error)
