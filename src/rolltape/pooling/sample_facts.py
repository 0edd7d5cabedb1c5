"""What is known of the samples of tapes without opening their recordings: one table, a row for each sample.

It is made of the indexes of samples, stored or made in memory. Rewards that another stage computed are found
there by who the samples are, as everywhere.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rolltape.codec.header import StoredColumn
from rolltape.errors import CorruptFileError, FileReplacedError, RolltapeError, StepMissingError
from rolltape.index.index_rows import SCHEMA
from rolltape.index.pass_rates import pass_rates
from rolltape.index.prompt_key import SIZE, uid_digest
from rolltape.index.sample_index import SampleIndex
from rolltape.key import Key
from rolltape.reader.run import Run
from rolltape.reader.step_roles import TRUNCATED, find_roles
from rolltape.steps import StepSelector
from rolltape.tape.step_index import call_order

FACTS = pa.schema(
    [
        ("tape", pa.string()), ("split", pa.string()), ("stage", pa.string()), ("step", pa.int64()),
        ("call", pa.string()), ("rank", pa.int32()), ("uid", pa.string()), ("index", pa.int32()),
        ("version", pa.int64()), ("policy", pa.int64()), ("reward", pa.float64()),
        ("pass_rate", pa.float64()), ("group_size", pa.int64()),
        ("prompt_tokens", pa.int64()), ("response_tokens", pa.int64()), ("tokens", pa.int64()),
        ("finish", pa.string()), ("truncated", pa.bool_()),
    ]
)  # fmt: skip
"""What is known of each sample; recorded columns of these names get another one."""
PLACE = pa.schema(
    [
        ("_file", pa.int32()), ("_row", pa.int32()), ("_digest", pa.binary(SIZE)), ("_group", pa.int64()),
        ("_prompt", pa.int64()),
    ]
)  # fmt: skip
"""Where it is, and with which others it goes: the recorded group, and all samples of the prompt."""
_OF_INDEX = tuple(name for name in SCHEMA.names if name != "file")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A recording that has samples of the pool, as it was when the pool was made."""

    run: Run
    tape: int
    """Which of the tapes it is on."""
    key: Key
    revision: str
    stored: bool
    """Whether a stored index speaks for it, which is compared with it when it is opened."""
    own_reward: bool
    """Whether its rewards are its own, and not those of another stage."""


@dataclass(slots=True)
class Facts:
    """All samples, and where they are."""

    table: pa.Table
    files: list[SourceFile]
    unreadable: dict[str, str] = field(default_factory=dict)
    """Recordings that cannot be read, and why: their samples are in no pool."""
    scored: dict[tuple[int, str], str] = field(default_factory=dict)
    """The stage that has the rewards, by tape and split, where that is another one."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which stages and steps of the tapes."""

    stage: str
    split: str | None
    steps: StepSelector
    passed: float


@dataclass(frozen=True, slots=True)
class _Whose:
    """Of which stage some rows are."""

    tape: int
    run: Run
    split: str
    stage: str
    tokenizer: bytes
    """Tells prompts apart that are the same token ids of different tokenizers."""


def tokenizer_of(run: Run) -> str | None:
    """The tokenizer that a tape names; None where it names none."""
    said = run.fingerprint.get("tokenizer")
    return None if said is None else json.dumps(said, sort_keys=True, default=str)


def gather(runs: Sequence[Run], selection: Selection) -> Facts:
    """What is known of the samples of these tapes, in the order of tapes, splits, steps, calls and rows."""
    facts = Facts(FACTS.empty_table(), [])
    tables: list[pa.Table] = []
    tokenizers = [tokenizer_of(run) for run in runs]
    several = len({one for one in tokenizers if one is not None}) > 1
    for at, run in enumerate(runs):
        tag = str(tokenizers[at]).encode() if several else b""
        for split in run.splits if selection.split is None else [selection.split]:
            tables += _of_stage(facts, at, run, split, selection, tag)
    if tables:
        facts.table = _grouped(pa.concat_tables(tables).combine_chunks(), selection.passed)
    else:
        facts.table = pa.schema([*FACTS, *PLACE]).empty_table()
    return facts


def _of_stage(
    facts: Facts, tape: int, run: Run, split: str, selection: Selection, tag: bytes
) -> Iterator[pa.Table]:
    if not run.files(selection.stage, split).files:
        return
    index = SampleIndex(run, selection.stage, split)
    facts.unreadable |= {f"{run.location}/{name}": why for name, why in index.unreadable.items()}
    rows = index_rows(index, selection.steps)
    if not len(rows):
        return
    scored = _scoring_stage(run, split, selection.stage)
    paths = _in_order(rows["path"].unique().to_pylist())
    start = len(facts.files)
    revisions, stored, own = index.revisions(), index.indexed, scored == selection.stage
    for path, key in paths:
        facts.files.append(SourceFile(run, tape, key, revisions[path], path in stored, own))
    rows = in_order(rows)
    reward = rows["reward"]
    if scored is not None and scored != selection.stage:
        facts.scored[tape, split] = scored
        reward = _rewards_of(rows, in_order(index_rows(SampleIndex(run, scored, split), selection.steps)))
    whose = _Whose(tape, run, split, selection.stage, tag)
    yield _facts_of(rows, reward, start, [key for _, key in paths], whose)


def index_rows(index: SampleIndex, steps: StepSelector) -> pa.Table:
    """The rows of an index; parts that are damaged are done without."""
    wanted = (*_OF_INDEX, "path")
    try:
        tables = list(index.tables(wanted))
    except (CorruptFileError, StepMissingError, FileReplacedError):
        index.read_through()
        tables = list(index.tables(wanted))
    if not tables:
        return pa.schema([*(SCHEMA.field(name) for name in _OF_INDEX), ("path", pa.string())]).empty_table()
    rows = pa.concat_tables(tables).combine_chunks()
    there = rows["step"].unique().to_pylist()
    kept = [step for step in there if step in steps]
    return (
        rows if len(kept) == len(there) else rows.filter(pc.is_in(rows["step"], pa.array(kept, pa.int64())))
    )


def _in_order(paths: Sequence[str]) -> list[tuple[str, Key]]:
    """Recordings in the order in which a step has them."""
    keys = [(path, key) for path in paths if (key := Key.parse(path)) is not None]
    return sorted(keys, key=lambda one: call_order(one[1]))


def _scoring_stage(run: Run, split: str, main: str) -> str | None:
    """The stage that says what samples are worth."""
    stages: dict[str, dict[str, StoredColumn]] = {}
    for name in dict.fromkeys([main, *run.stages(split)]):
        first = next(run.recordings(name, split), None)
        with suppress(RolltapeError):  # damaged: a check tells
            stages[name] = dict(first.file.stored_columns) if first is not None else {}
    if main not in stages:
        return None
    found = find_roles(main, stages).reward
    return None if found is None else found.stage


def in_order(rows: pa.Table) -> pa.Table:
    """The rows of an index in the order of their recordings."""
    order = {path: at for at, (path, _) in enumerate(_in_order(rows["path"].unique().to_pylist()))}
    numbers = pa.array([order[path] for path in rows["path"].to_pylist()], pa.int32())
    return rows.append_column("_file", numbers).sort_by([("_file", "ascending"), ("row", "ascending")])


def same_samples(rows: pa.Table, others: pa.Table) -> np.ndarray:
    """For each sample the row of another stage that is about it, by step, uid and index; -1 where none is.

    What comes several times in a step, in several calls, is told apart by which time it is. Without uids only
    the order tells, and only where both have as many samples at a step.
    """
    known = {who: at for at, who in enumerate(_who(others))}
    here, there = (Counter(table["step"].to_pylist()) for table in (rows, others))
    found = [known.get(who, -1) if who[1] or here[who[0]] == there[who[0]] else -1 for who in _who(rows)]
    return np.array(found, np.int64)


def _rewards_of(rows: pa.Table, others: pa.Table) -> pa.ChunkedArray:
    """The rewards that another stage has for these samples; their own where it does not have a sample."""
    at = same_samples(rows, others)
    theirs = others["reward"].take(pa.array(at, pa.int64(), mask=at < 0))
    return pc.if_else(pa.array(at < 0), rows["reward"], theirs)


def _who(rows: pa.Table) -> list[tuple[int, str, int, int]]:
    seen: Counter[tuple[int, str, int]] = Counter()
    found = []
    for one in zip(*(rows[name].to_pylist() for name in ("step", "uid", "index")), strict=True):
        found.append((*one, seen[one]))
        seen[one] += 1
    return found


def _facts_of(
    rows: pa.Table, reward: pa.ChunkedArray, start: int, keys: Sequence[Key], whose: _Whose
) -> pa.Table:
    count, file = len(rows), rows["_file"].to_numpy()
    calls = pa.array([str(key.call) for key in keys])
    ranks = np.array([key.rank for key in keys], np.int32)
    tokens = [rows[name].cast(pa.int64()) for name in ("prompt_tokens", "response_tokens")]
    finish = pc.utf8_lower(rows["finish"])
    truncated = pc.if_else(
        pc.is_valid(finish), pc.is_in(finish, pa.array(TRUNCATED)), pa.scalar(None, pa.bool_())
    )
    digests, uids = rows["prompt"].to_pylist(), rows["uid"].to_pylist()
    # A uid names a group of its step and tape only; where nothing else says whose a sample is, it must do.
    named = {uid: uid_digest(uid) for uid in set(uids)}
    place = f"{whose.tape}\0{whose.split}\0".encode()
    groups = [
        place + f"{step}\0".encode() + (uid or f"\0{row}").encode("utf-8", "surrogatepass")
        for step, uid, row in zip(rows["step"].to_pylist(), uids, range(count), strict=True)
    ]
    prompts = [
        group if digest == named[uid] else whose.tokenizer + digest
        for group, digest, uid in zip(groups, digests, uids, strict=True)
    ]
    columns = {
        "tape": pa.array([whose.run.path] * count), "split": pa.array([whose.split] * count),
        "stage": pa.array([whose.stage] * count), "step": rows["step"], "call": calls.take(pa.array(file)),
        "rank": pa.array(ranks[file]), "uid": rows["uid"], "index": rows["index"], "version": rows["version"],
        "policy": pc.coalesce(rows["version"], rows["step"]), "reward": reward,
        "pass_rate": pa.nulls(count, pa.float64()), "group_size": pa.nulls(count, pa.int64()),
        "prompt_tokens": tokens[0], "response_tokens": tokens[1], "tokens": pc.add(*tokens),
        "finish": rows["finish"], "truncated": truncated, "_file": pa.array(file + np.int32(start)),
        "_row": rows["row"], "_digest": rows["prompt"], "_group": pa.array(groups, pa.large_binary()),
        "_prompt": pa.array(prompts, pa.large_binary()),
    }  # fmt: skip
    return pa.table(columns)


def _grouped(table: pa.Table, passed: float) -> pa.Table:
    """The same with groups numbered, and with the pass rate of each prompt over all these samples."""
    numbered = {name: _numbers(table[name]) for name in ("_group", "_prompt")}
    prompts, rewards = numbered["_prompt"], table["reward"].to_numpy(zero_copy_only=False).astype(np.float64)
    rates = pass_rates(prompts, rewards, passed)
    new = {
        "pass_rate": pa.array(rates, mask=np.isnan(rates)),
        "group_size": pa.array(np.bincount(prompts)[prompts].astype(np.int64)),
        "_group": pa.array(numbered["_group"]), "_prompt": pa.array(prompts),
    }  # fmt: skip
    schema = pa.schema([*FACTS, *PLACE])
    return pa.table([new.get(name, table[name]) for name in schema.names], names=schema.names).cast(schema)


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """The same values as numbers, counted as they first come."""
    coded = column.combine_chunks().dictionary_encode()
    numbers: np.ndarray = coded.indices.to_numpy().astype(np.int64)
    return numbers
