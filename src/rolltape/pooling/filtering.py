"""Writes the samples of a pool, or their prompts, to a new tape or a Parquet file: all of it, or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rolltape.batch import dismantle
from rolltape.codec.file import encode
from rolltape.codec.pack import pack
from rolltape.errors import BatchError, ConfigError, StepExistsError
from rolltape.exporting.table import as_json
from rolltape.index.index_rows import RecordedSamples
from rolltape.index.pass_rates import PASSED
from rolltape.index.sample_index import SampleIndex
from rolltape.key import Key
from rolltape.pooling.sample_facts import in_order, index_rows, same_samples
from rolltape.pooling.sample_pool import Pool, pool
from rolltape.reader.run import Run
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.storage import Storage, is_url, storage_at
from rolltape.tape import Tape
from rolltape.tape.manifest import NAME, Manifest, new_manifest, write_manifest
from rolltape.tape.recording import Recording

FORMATS = ("tape", "parquet")
WHAT = ("samples", "prompts")
PROMPTS = "prompts"
"""The stage of a tape of prompts."""
ROWS = 4096
"""Samples that are written to Parquet at a time."""

Progress = Callable[[int, int, str], None]
"""Told how many recordings of how many are done, and which comes next."""


@dataclass(slots=True)
class Filtered:
    """What was written."""

    to: str
    format: str
    what: str
    """``samples`` or ``prompts``."""
    samples: int = 0
    """How many match."""
    of: int = 0
    """Of how many."""
    prompts: int = 0
    """How many prompts they are of."""
    recordings: int = 0
    """How many recordings they are in."""
    tapes: int = 0
    """How many tapes were looked through."""
    no_reward: int = 0
    """How many of all samples have no reward, and so match nothing that asks for one."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Recordings that were left out, and why."""


def filter_tapes(
    tapes: Sequence[str | os.PathLike[str] | Run],
    to: str | os.PathLike[str],
    where: str | None = None,
    *,
    what: str = "samples",
    format: str | None = None,
    unique: str | None = None,
    stage: str = "rollout",
    split: str | None = None,
    steps: StepSelector = ALL_STEPS,
    passed: float = PASSED,
    progress: Progress = lambda done, total, name: None,
) -> Filtered:
    """Write the samples of tapes that match, or their prompts; where none does, nothing is written.

    ``format`` is ``tape`` or ``parquet``, by default as the name of ``to`` ends.
    """
    target = os.fspath(to)
    form = format or ("parquet" if target.endswith(".parquet") else "tape")
    for value, known in ((form, FORMATS), (what, WHAT)):
        if value not in known:
            raise ConfigError(f"{value!r} is not one of {', '.join(known)}")
    _refuse_existing(target, form)
    everything = pool(tapes, stage=stage, split=split, steps=steps, passed=passed)
    found = everything if where is None else everything.where(where)
    found = found if unique is None else found.unique(unique)
    done = Filtered(
        target, form, what, len(found), len(everything), len(found._table["_prompt"].unique()),
        len(found._table["_file"].unique()), len(everything.tapes), everything.facts["reward"].null_count,
        everything.unreadable,
    )  # fmt: skip
    if not len(found):
        return done
    if what == "prompts":
        if form == "parquet":
            table = _prompts(found, as_text=True)
            _as_parquet(target, pa.table(table).schema, iter([pa.table(table)]))
        else:
            _prompt_tape(target, _prompts(found, as_text=False))
    elif form == "parquet":
        _as_parquet(target, found.schema, _pieces(found, progress))
    else:
        _SampleTape(storage_at(target), everything, found, progress).write()
    return done


def _refuse_existing(target: str, form: str) -> None:
    if form == "parquet" and is_url(target):
        raise ConfigError(
            "a Parquet file is written to this machine",
            where=target,
            hint="write it here, then copy it there; a tape can be written there: --format tape",
        )
    there = storage_at(target).exists(NAME) if is_url(target) else Path(target).exists()
    if there:
        raise StepExistsError(
            "this exists already, and nothing is written over",
            where=target,
            hint="name another place, or remove it first",
        )


# -- Parquet -----------------------------------------------------------------------------------------------


def _pieces(found: Pool, progress: Progress) -> Iterator[pa.Table]:
    """The rows of all samples, some at a time."""
    schema = found.schema
    for start in range(0, len(found), ROWS):
        progress(start, len(found), "samples")
        yield found[start : start + ROWS].arrow(schema.names).cast(schema)


def _as_parquet(target: str, schema: pa.Schema, tables: Iterator[pa.Table]) -> None:
    path = Path(target).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:100]}.{os.urandom(6).hex()}.tmp")
    try:
        with temporary.open("xb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table)
        os.link(temporary, path)  # unlike a rename, never in another's place
    except FileExistsError:
        _refuse_existing(target, "parquet")
        raise
    finally:
        temporary.unlink(missing_ok=True)


# -- prompts -----------------------------------------------------------------------------------------------


def _prompts(found: Pool, *, as_text: bool) -> dict[str, Any]:
    """A row for each prompt, with how its samples did."""
    numbers = found._table["_prompt"].to_numpy()
    firsts = found.unique("prompt")
    prompts = firsts.prompts()
    rewards = found._table["reward"].to_numpy(zero_copy_only=False).astype(np.float64)
    order = {number: at for at, number in enumerate(firsts._table["_prompt"].to_pylist())}
    places = np.array([order[number] for number in numbers.tolist()], np.int64)
    scored = np.bincount(places, ~np.isnan(rewards), len(order))
    total = np.bincount(places, np.nan_to_num(rewards, nan=0.0), len(order))
    mean = [float(t / n) if n else None for t, n in zip(total, scored, strict=True)]
    return {
        "prompt": [_text(one) for one in prompts] if as_text else prompts,
        "uid": firsts._table["uid"].to_pylist(),
        "samples": np.bincount(places, minlength=len(order)).astype(np.int64),
        "scored": scored.astype(np.int64),
        "mean_reward": pa.array(mean, pa.float64()) if as_text else mean,
        "pass_rate": firsts._table["pass_rate"].combine_chunks()
        if as_text
        else firsts._table["pass_rate"].to_pylist(),
        "group_size": firsts._table["group_size"].to_numpy(),
        "first_step": np.array([_least(found, places, at) for at in range(len(order))], np.int64),
    }


def _least(found: Pool, places: np.ndarray, at: int) -> int:
    return int(found._table["step"].to_numpy()[places == at].min())


def _text(prompt: Any) -> str | None:
    """A prompt as text; chats, ids and anything else as JSON."""
    for name in ("text", "messages", "token_ids"):
        value = (
            None if prompt is None or isinstance(prompt, (str, list, dict)) else getattr(prompt, name, None)
        )
        if value is not None and len(value):
            prompt = value
            break
    if prompt is None or isinstance(prompt, str):
        return None if prompt is None else prompt.encode("utf-8", "backslashreplace").decode()
    return as_json(prompt)


def _prompt_tape(target: str, rows: dict[str, Any]) -> None:
    with Tape(target, mode="record") as tape, tape.step(0):
        tape.stage(PROMPTS)(lambda: rows)()


# -- a tape of samples -------------------------------------------------------------------------------------


class _SampleTape:
    """A new tape with the recordings of a pool, cut to its samples, and their rewards."""

    def __init__(self, out: Storage, everything: Pool, found: Pool, progress: Progress) -> None:
        self._out, self._everything, self._found = out, everything, found
        self._progress = progress
        self._several = len(everything.tapes) > 1
        self._written: list[str] = []

    def write(self) -> None:
        self._out.check_writable()
        manifest = self._manifest()
        try:
            pieces = list(self._found._recordings.each(self._found._table))
            for done, (opened, at) in enumerate(pieces):
                self._progress(done, len(pieces), opened.source.key.path)
                rows = self._found._table["_row"].to_numpy()[at].tolist()
                self._publish(opened.source.run, opened.recording, sorted(dict.fromkeys(rows)))
            for (tape, split), stage in self._everything._facts.scored.items():
                self._publish_scores(tape, split, stage)
            write_manifest(self._out, manifest)  # comes last: without it there is no tape
        except BaseException:
            for name in self._written:
                with suppress(OSError):
                    self._out.delete(name)
            raise

    def _manifest(self) -> Manifest:
        told = [run.manifest for run in self._everything.tapes]
        same = all(one.fingerprint == told[0].fingerprint for one in told)
        fresh = new_manifest(told[0].fingerprint if same else {})
        earlier = {one.digest: one.fingerprint for one in told if one.digest != fresh.digest}
        for one in told:
            earlier |= dict(one.earlier)
        sources = list(dict.fromkeys(name for one in told for name in (one.id, *one.sources)))
        return replace(fresh, earlier=earlier, sources=sources)

    def _publish(self, run: Run, recording: Recording, rows: Sequence[int]) -> None:
        key = self._key(run, recording.key)
        file = recording.open_whole()
        noted: dict[str, Any] = {"cut_from": file.digest, "inputs": None, "arguments": None}
        if key != recording.key:
            noted |= {"call": key.call, "rank": 0, "world_size": 1}
        given = RecordedSamples(run.storage, recording).arguments_for(rows)
        inputs = None if given is None else pack(dismantle(given))
        if inputs is not None:
            noted |= {"inputs": inputs.digest(), "arguments": file.about.get("arguments")}
        try:
            pieces = file.subset(rows, **noted)
        except BatchError as error:
            error.where = recording.where
            error.hint = "write Parquet instead: --to OUT.parquet"
            raise
        if inputs is not None:
            about = {**file.about, **noted, "holds": "inputs"}
            self._put(replace(key, inputs=True).path, encode(inputs, **about))
        self._put(key.path, pieces)

    def _publish_scores(self, tape: int, split: str, stage: str) -> None:
        """The rows of the stage that has the rewards of these samples."""
        pool, run = self._everything, self._everything.tapes[tape]
        mine = np.array([one.tape == tape and one.key.split == split for one in pool._recordings.sources])
        every = pool._table.filter(pa.array(mine[pool._table["_file"].to_numpy()]))
        others = in_order(index_rows(SampleIndex(run, stage, split), ALL_STEPS))
        at = same_samples(every, others)
        chosen = set(zip(*(self._found._table[name].to_pylist() for name in ("_file", "_row")), strict=True))
        places = zip(*(every[name].to_pylist() for name in ("_file", "_row")), strict=True)
        wanted = [int(row) for row, place in zip(at, places, strict=True) if row >= 0 and place in chosen]
        rows: dict[str, list[int]] = {}
        for row in sorted(wanted):
            rows.setdefault(others["path"][row].as_py(), []).append(others["row"][row].as_py())
        for path, taken in rows.items():
            key = Key.parse(path)
            assert key is not None
            self._publish(run, run.recording(key), taken)

    def _key(self, run: Run, key: Key) -> Key:
        """Its name on the new tape: its own, unless there are several tapes, or shards."""
        if not self._several and not key.is_shard:
            return key
        names = [run.id[:8]] if self._several else []
        names += [str(key.call), *([f"rank{key.rank}"] if key.is_shard else [])]
        return replace(key, call="-".join(names), rank=0, world_size=1)

    def _put(self, name: str, pieces: list[Any]) -> None:
        self._out.publish(name, pieces, replace=False)
        self._written.append(name)
