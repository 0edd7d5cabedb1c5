"""``Run``: a tape opened to be read. Nothing on it changes, and a run may still be recording onto it.

>>> import rolltape, tempfile
>>> folder = tempfile.mkdtemp() + "/base"
>>> with rolltape.Tape(folder, mode="record") as tape, tape.step(0):
...     batch = tape.stage("rollout")(lambda: {"uid": ["a", "b"], "reward": [0.0, 1.0]})()
...     tape.log({"loss": 0.5})
>>> run = rolltape.open(folder)
>>> run.splits, run.stages(), run.steps(), run.metrics()
(['train'], ['rollout'], [0], {0: {'loss': 0.5}})
>>> run.samples(0)["b", 0]["reward"]
1.0
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rolltape.errors import RolltapeError, StorageError
from rolltape.hooks import hook
from rolltape.key import Key, check_name, metrics_path
from rolltape.reader.acceptances import acceptances
from rolltape.reader.listing import StageFiles, is_name, stage_files
from rolltape.reader.samples import Samples
from rolltape.reader.wording import moment
from rolltape.storage import Mark, Storage, is_url, storage_at
from rolltape.tape.manifest import Manifest, read_manifest
from rolltape.tape.metrics import read_all_metrics
from rolltape.tape.missing import explain_missing
from rolltape.tape.opening import not_found, resolved_dir
from rolltape.tape.recording import Recording
from rolltape.tape.replayed import read_waits
from rolltape.tape.shards import Shortfall, stale_shards

T = TypeVar("T")

_looking_since: ContextVar[float | None] = ContextVar("rolltape_looking_since", default=None)


@contextmanager
def looking() -> Iterator[None]:
    """While it lasts, what a tape in an object store has is asked for once: every list is a request there.

    For who asks the same many times over, as a page or a comparison does. Others see what has landed since.
    """
    token = None if _looking_since.get() is not None else _looking_since.set(time.monotonic())
    try:
        yield
    finally:
        if token is not None:
            _looking_since.reset(token)


@dataclass(frozen=True, slots=True)
class _Listed:
    files: StageFiles
    mark: Mark | None
    """What the storage said of the folder before it was listed."""


class Run:
    """What is on a tape. Made by :func:`rolltape.open`."""

    def __init__(self, path: str, storage: Storage, manifest: Manifest) -> None:
        self.path = path
        """As it was asked for."""
        self.storage = storage
        self.manifest = manifest
        """What ``tape.json`` says."""
        self._listed: dict[tuple[str, str], _Listed] = {}
        self._positions: dict[tuple[str, str], float] = {}
        self._seen: dict[tuple[str, ...], tuple[float, Any]] = {}
        """What was asked of a store, and when."""

    def __repr__(self) -> str:
        return f"Run({self.path!r}, {self.title})"

    def _repr_html_(self) -> str:
        """What a notebook shows of it; what draws it lies above."""
        return str(hook("run in a notebook")(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """What another process is given: where the tape is; what is on it, it sees for itself."""
        return Run, (self.path, self.storage, self.manifest)

    @property
    def location(self) -> str:
        """Where it is, as an absolute path."""
        return self.storage.location

    @property
    def title(self) -> str:
        """The tape in a line, for people."""
        return f"id {self.manifest.id[:8]}, created {moment(self.manifest.created)}"

    def waits(self) -> dict[Key, float]:
        """Seconds that the trainer of a replay waited for each recording; on its tape ``out``, else empty."""
        return read_waits(self.storage)

    @property
    def id(self) -> str:
        """Names the tape, wherever it is copied."""
        return self.manifest.id

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """What the run said about itself, in named parts."""
        return self.manifest.fingerprint

    @property
    def configuration(self) -> dict[str, Any]:
        """The fingerprint setting by setting: ``{"sampling.temperature": 1.0}``."""
        return dict(_settings(self.manifest.fingerprint))

    @property
    def environment(self) -> Mapping[str, str]:
        """Versions and flags that could change numbers."""
        return self.manifest.environment

    @property
    def program(self) -> Mapping[str, str]:
        """The ``command`` that began the tape and the ``commit`` of its code, where these are known."""
        return self.manifest.program

    # -- what there is ---------------------------------------------------------------------------------

    @property
    def splits(self) -> list[str]:
        """The splits, ``train`` first; one that has only metrics counts."""
        return list(self._once(("splits",), self._splits))

    def _splits(self) -> list[str]:
        names = [name for folder in self.storage.folders("") if is_name(name := folder.rstrip("/"))]
        found = [name for name in names if self.has_metrics(name) or self.stages(name)]
        return sorted(found, key=lambda name: (name != "train", name))

    def has_metrics(self, split: str) -> bool:
        """Whether there are metrics, or something in their place, which reading them names."""
        try:
            return self.storage.exists(metrics_path(split))
        except StorageError:
            if is_url(self.location):  # it did not answer
                raise
            return True

    def stages(self, split: str = "train") -> list[str]:
        """The stages that have recordings, in the order in which a step ran them."""
        found = [name for name in self._stage_folders(split) if self.files(name, split).files]
        if len(found) < 2:
            return found
        return sorted(found, key=lambda name: (self._position(split, name), name))

    def _once(self, what: tuple[str, ...], ask: Callable[[], T]) -> T:
        """What ``ask`` says; of a store that is being looked at, what it said first."""
        since = _looking_since.get()
        if since is None or not is_url(self.location):
            return ask()
        at, found = self._seen.get(what, (float("-inf"), None))
        if at < since:
            at, found = time.monotonic(), ask()
            self._seen[what] = at, found
        known: T = found
        return known

    def _stage_folders(self, split: str) -> list[str]:
        return self._once(("stages", split), lambda: self._list_stages(split))

    def _list_stages(self, split: str) -> list[str]:
        names = [folder.rstrip("/").rsplit("/", 1)[-1] for folder in self.storage.folders(f"{split}/")]
        return [name for name in names if is_name(name)]

    def steps(self, stage: str | None = None, split: str = "train") -> list[int]:
        """The recorded steps of a stage, or of all stages."""
        stages = self.stages(split) if stage is None else [stage]
        return sorted({step for name in stages for step, _ in self.files(name, split).files})

    def files(self, stage: str = "rollout", split: str = "train") -> StageFiles:
        """The files of a stage. A folder that has not changed since is not listed again."""
        check_name("split", split)
        check_name("stage", stage)
        return self._once(("files", split, stage), lambda: self._files(stage, split))

    def _files(self, stage: str, split: str) -> StageFiles:
        mark = self.storage.mark(f"{split}/{stage}/")
        known = self._listed.get((split, stage))
        if known is None or mark is None or known.mark != mark or not mark.settled:
            files = next(stage_files(self.storage, split, stage), StageFiles(split, stage, [], []))
            known = self._listed[split, stage] = _Listed(files, mark)
        return known.files

    def incomplete(self, stage: str | None = None, split: str = "train") -> list[Shortfall]:
        """The steps that some ranks have recorded and others not: what they lack. Other methods skip them."""
        names = self._stage_folders(split) if stage is None else [stage]
        return [one for name in names for one in self.files(name, split).shortfalls]

    def recordings(self, stage: str | None = None, split: str | None = None) -> Iterator[Recording]:
        """Every recording, of one stage or split where that is named; reads names only."""
        for each in self.splits if split is None else [split]:
            for name in self.stages(each) if stage is None else [stage]:
                yield from (self.recording(key) for key in self.files(name, each).recordings())

    def recording(self, key: Key) -> Recording:
        """One recording, to read all or part of."""
        return Recording(self.storage, key)

    def find(self, key: Key, rank: int | None = None) -> Recording | None:
        """The recording of a call, or its inputs; of several shards that of ``rank``, else the first."""
        listed = self.files(key.stage, key.split)
        for found in (listed if rank is None else listed.everything).at(key.step):
            if found.call == key.call and rank in (None, found.rank):
                wanted = replace(found, inputs=key.inputs)
                return self.recording(wanted) if self.storage.exists(wanted.path) else None
        return None

    # -- what it says ----------------------------------------------------------------------------------

    def metrics(
        self, split: str = "train", rank: int = 0, damaged: list[RolltapeError] | None = None
    ) -> dict[int, dict[str, Any]]:
        """What a rank logged, by step. Lines that cannot be read are an error, or go to ``damaged``."""
        return read_all_metrics(self.storage, split, damaged).get(rank, {})

    def metrics_by_rank(self, split: str = "train") -> dict[int, dict[int, dict[str, Any]]]:
        """What every rank logged: rank -> step -> name -> value."""
        return read_all_metrics(self.storage, split)

    def seconds(self, stage: str, split: str = "train") -> dict[int, float]:
        """What the live calls of a stage took, by step: calls added up, of shards the slowest."""
        by_rank: dict[int, dict[int, float]] = {}
        for key in self.files(stage, split).recordings():
            mine = by_rank.setdefault(key.step, {})
            mine[key.rank] = mine.get(key.rank, 0.0) + (self.recording(key).about.live_seconds or 0.0)
        return {step: max(found.values()) for step, found in by_rank.items()}

    def samples(
        self, step: int, stage: str = "rollout", split: str = "train", *, whole: bool = False
    ) -> Samples:
        """One stage at one step, whatever its calls and shards. ``whole`` reads its files in one go."""
        listed = self.files(stage, split)
        keys = listed.at(step)
        if not keys:
            raise explain_missing(
                self.storage, Key(split=split, stage=stage, step=step), short=listed.short(step)
            )
        recordings = [self.recording(key) for key in keys]
        if (stale := stale_shards(self.storage, recordings)) is not None:
            raise explain_missing(self.storage, stale.key, short=stale)
        other = self.files("rollout", split).at(step) if stage != "rollout" else []
        rollout = Samples([self.recording(key) for key in other]) if other else None
        return Samples(recordings, whole=whole, rollout=rollout)

    def baseline(self, among: Sequence[Run] = ()) -> Run | None:
        """The tape whose replay wrote this one: one of these, else where it was, if it is still there."""
        wanted = self.manifest.baseline
        if wanted is None:
            return None
        for run in among:
            if run is not self and self.replays(run):
                return run
        try:
            found = open(wanted["dir"])
        except (RolltapeError, ValueError):  # not there, or no path at all
            return None
        return found if found is not None and self.replays(found) else None

    def replays(self, other: Run) -> bool:
        """Whether this is what a replay of the other computed, or of what the other was made of."""
        mine = self.manifest.baseline
        return mine is not None and mine["id"] in other.ids

    @property
    def ids(self) -> tuple[str, ...]:
        """Its id, those it had before it accepted a change, and those of the tapes it was cut out of."""
        cut = self.manifest.cut
        return self.id, *(one.before for one in acceptances(self.storage)), *(cut["of"] if cut else ())

    def version(self) -> str:
        """Changes whenever something lands on the tape. What cannot be looked at has no part in it."""
        marks: list[str] = []
        for split in self.splits:
            for stage in self.stages(split):
                files = self.files(stage, split).files
                mark = self._listed[split, stage].mark
                marks.append(f"{len(files)}.{mark.text if mark else ''}")
            with suppress(StorageError):
                stat = self.storage.stat(metrics_path(split))
                marks.append(str(stat.size if stat else 0))
        return "-".join(marks)

    def _position(self, split: str, stage: str) -> float:
        """Where in a step a stage comes, which its first recording says; at the end where it does not."""
        if (split, stage) not in self._positions:
            files, position = self.files(stage, split), None
            with suppress(RolltapeError, IndexError):  # a damaged file is told by whoever reads it
                about = self.recording(files.at(files.files[0][0])[0]).about
                position = about.position if about.order is None else about.order
            self._positions[split, stage] = float("inf") if position is None else position
        return self._positions[split, stage]


def open(path: str | os.PathLike[str]) -> Run:
    """Open a tape to read it. Nothing is ever written, and a place without a tape is an error.

    Works while the run is being recorded: what has landed since is there when it is next asked for.
    """
    location = resolved_dir(os.fspath(path))
    storage = storage_at(location)
    manifest = read_manifest(storage)
    if manifest is None:
        raise not_found(storage)
    return Run(os.fspath(path), storage, manifest)


def _settings(parts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in parts.items():
        if isinstance(value, Mapping) and value and not next(iter(value)).startswith("$"):
            yield from _settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
