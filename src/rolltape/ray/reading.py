"""``rolltape.ray.read``: the samples of a stage as a Ray Data ``Dataset``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rolltape.errors import ConfigError, StepMissingError
from rolltape.exporting.parquet import Schema
from rolltape.ray.cluster_spread import RaySpread
from rolltape.ray.ray_library import connected, ray_library
from rolltape.ray.sample_rows import KEYS, ROW, FileFacts, ReadFacts, ReadRows
from rolltape.reader.run import Run, open
from rolltape.reader.sample_filter import Sieve, sieve
from rolltape.steps import ALL_STEPS, StepSelector


def read(
    run: str | os.PathLike[str] | Run,
    stage: str = "rollout",
    columns: Sequence[str] | None = None,
    steps: object = None,
    where: str | pc.Expression | None = None,
    *,
    split: str | None = None,
) -> Any:
    """The samples of a stage as a Ray Data ``Dataset``: a row for each, as ``rolltape export`` writes them.

    A row says which sample it is (``step``, ``uid``, ``index``, ``split``, ``stage``, ``call``, ``rank``) and
    has the recorded columns without padding. Nothing but the columns asked for is read and decoded; each
    has passed its checksum.

    Args:
        run: The tape, by its path or URL or as a run; every node has to see it there.
        stage: The stage.
        columns: Only these recorded columns; those that say which sample it is are always there.
        steps: Only these steps, as in ``"0-9,20"``.
        where: Only rows for which this is true: text, ``"reward > 0.9 and step < 10"``, as everywhere in
            Rolltape, or an expression of pyarrow. What it names is read first; the other columns are read
            only where a row is left, and files that their names rule out are not read at all.
        split: Only this split.
    """
    data = ray_library("ray.data", "rolltape.ray.read")
    ray = connected("rolltape.ray.read")
    opened = run if isinstance(run, Run) else open(run)
    chosen = ALL_STEPS if steps is None else StepSelector.parse(steps)
    keys = [one.key for one in opened.recordings(stage, split) if one.key.step in chosen]
    if not keys:
        raise StepMissingError(
            f"stage {stage!r} has no recording among these steps",
            where=opened.location,
            hint=f"rolltape ls {opened.path} shows what there is",
        )
    facts = list(RaySpread(ray).over(ReadFacts(opened), keys, [opened.location]))
    schema = _schema(facts)
    wanted = [*ROW, *(name for name in schema.names if name not in ROW)]
    if columns is not None:
        _check(columns, schema, opened)
        wanted = [*ROW, *(name for name in dict.fromkeys(columns) if name not in ROW)]
    sifted = None if where is None else sieve(where, schema)
    if sifted is not None:
        facts = _not_ruled_out(facts, sifted)
    needed = {*wanted, *(sifted.needs if sifted else ())}
    small = pa.schema([field for field in schema if field.name in needed])
    rows = ReadRows(opened, (), small, tuple(wanted), sifted)
    from rolltape.ray.tape_source import TapeSource

    return data.read_datasource(TapeSource(facts, rows))


def _schema(facts: Sequence[FileFacts]) -> pa.Schema:
    """One schema for the rows of all files."""
    found = Schema(ROW)
    for file in facts:
        found.join(file.schema)
    return found.arrow()


def _check(columns: Sequence[str], schema: pa.Schema, run: Run) -> None:
    for name in columns:
        if name not in schema.names:
            there = ", ".join(name for name in schema.names if name not in ROW)
            raise ConfigError(f"there is no column {name!r}", where=run.location, hint=f"columns: {there}")


def _not_ruled_out(facts: Sequence[FileFacts], sifted: Sieve) -> list[FileFacts]:
    """The files that may have rows that are wanted, as far as their names tell; the first, if none has."""
    if not sifted.needs <= {*KEYS}:
        return list(facts)
    keys = [file.key for file in facts]
    columns = {name: [getattr(key, name) for key in keys] for name in KEYS}
    columns["call"] = [str(call) for call in columns["call"]]
    left = [facts[at] for at in sifted.rows(pa.table(columns)).tolist()]
    return left or list(facts[:1])
