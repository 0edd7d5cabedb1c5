"""The metrics of a run: one JSON line per step, floats exact, each line with its own checksum.

    {"crc":"5be3a1f0","bytes":105,"step":3,"tape":"9f…","split":"train","metrics":{"pg_loss":0.25}}

``bytes`` is the length of the line from ``"step"`` on, and ``crc`` the CRC-32 of that part: a line that a
crash cut short is shorter than it says, and is reported and left out; one that was altered is an error.
``tape`` and ``split`` say where the line belongs; lines of older versions do not. ``rank`` follows ``step``
where several processes log. Of several lines for one step the later values hold;
``"new":true`` (mode rewrite) says that those before it do not count. ``run`` stands in the lines of a run
that rewrote the whole tape: then only the lines of the current run count.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rolltape.batch.json_values import Path, from_json, to_json, unsupported
from rolltape.errors import (
    CorruptFileError,
    MemoryLimitError,
    RolltapeError,
    StepMissingError,
    StorageError,
)
from rolltape.key import metrics_path
from rolltape.steps import as_step
from rolltape.storage import Storage
from rolltape.storage.memory_limit import check_memory
from rolltape.tape.checked_lines import LONGEST, check_line, checked_line, lines_of
from rolltape.tape.current_run import current_run
from rolltape.tape.place import check_note

_EXPANDED = 8
"""Bytes of memory that a byte of a line becomes, roughly."""

log = logging.getLogger("rolltape")


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the metrics; tensors and arrays of one element become the numbers they hold."""
    if not isinstance(metrics, Mapping):
        raise unsupported(metrics, (), "metrics are a mapping from names to values")
    for name in metrics:
        if not isinstance(name, str):
            raise unsupported(name, (repr(name),), "the name of a metric is text")
    plain = {name: to_json(_number(value, name), _refuse, (name,)) for name, value in metrics.items()}
    return {name: from_json(node, _unknown) for name, node in plain.items()}


def metrics_line(
    step: int,
    metrics: Mapping[str, Any],
    rank: int | None = None,
    *,
    new: bool = False,
    run: str | None = None,
    tape: str | None = None,
    split: str | None = None,
) -> bytes:
    """One line of ``metrics.jsonl``, of what ``plain_metrics`` returned; ``tape`` and ``split``: of which."""
    node: dict[str, Any] = {"step": step}
    if tape is not None:
        node |= {"tape": tape, "split": split}
    if rank is not None:
        node["rank"] = rank
    if new:
        node["new"] = True
    if run is not None:
        node["run"] = run
    node["metrics"] = to_json(dict(metrics), _refuse)
    line = checked_line(node)
    if len(line) > LONGEST:
        raise unsupported(
            metrics, (), f"it takes {len(line):,} bytes, over {LONGEST:,}: record data as a stage"
        )
    return line


def read_metrics(storage: Storage, split: str, rank: int = 0) -> dict[int, dict[str, Any]]:
    """All metrics of one rank by step."""
    return read_all_metrics(storage, split).get(rank, {})


def read_all_metrics(
    storage: Storage, split: str, damaged: list[RolltapeError] | None = None
) -> dict[int, dict[int, dict[str, Any]]]:
    """All metrics by rank and step. Lines that cannot be read go to ``damaged`` where it is given."""
    found: dict[int, dict[int, dict[str, Any]]] = {}
    for node in _lines(storage, split, damaged):
        mine = found.setdefault(node.get("rank", 0), {})
        if node.get("new"):
            mine.pop(node["step"], None)
        mine.setdefault(node["step"], {}).update(node["metrics"])
    return dict(sorted(found.items()))


def logged_steps(storage: Storage, split: str, rank: int = 0) -> set[int]:
    """The steps that have metrics."""
    return {node["step"] for node in _lines(storage, split) if node.get("rank", 0) == rank}


def _lines(
    storage: Storage, split: str, damaged: list[RolltapeError] | None = None
) -> Iterator[dict[str, Any]]:
    """Every complete line of the current run, in order."""
    name = metrics_path(split)
    try:
        text = bytes(storage.read(name))
        check_memory(_EXPANDED * len(text), "reading its lines", f"{storage.location}/{name}")
        run = current_run(storage)
    except StepMissingError:
        return
    except (StorageError, MemoryLimitError, CorruptFileError) as error:
        # A link in its place, a file of holes, or nobody knows which lines are of the current run.
        if damaged is None:
            raise
        damaged.append(error)
        return
    for number, line in lines_of(text):
        where = f"{storage.location}/{name}, line {number}"
        try:
            body = check_line(line, where)
            node = None if body is None else read_line(body, where)
            if node is not None:
                check_note(storage, node, where, split)
        except CorruptFileError as error:
            if damaged is None:
                raise
            damaged.append(error)
            continue
        if node is not None:
            if run is None or node.get("run") == run.id:
                yield node
        else:
            log.warning("%s has no end and is left out: it was being written when its process died", where)


def read_line(body: bytes, where: str) -> dict[str, Any]:
    """What a line with a right checksum says, if that can be: anyone can write a checksum."""
    try:
        node: dict[str, Any] = json.loads(b"{" + body)
        as_step(node["step"])
        as_step(node.get("rank", 0), "rank")
        if not isinstance(node["metrics"], dict):
            raise TypeError("metrics are not by name")
        node["metrics"] = from_json(node["metrics"], _unknown)
        if not isinstance(node["metrics"], dict):
            raise TypeError("metrics are not by name")
    except CorruptFileError as error:
        error.where = error.where or where
        raise
    except Exception as error:
        raise CorruptFileError(
            f"a line of metrics has a right checksum and cannot be read: {error!r:.200}",
            where=where,
            causes=["another tool wrote or edited the file"],
        ) from None
    return node


def _number(value: Any, name: str) -> Any:
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "detach"):
        size = value.numel() if hasattr(value, "numel") else value.size
        if size != 1:
            raise unsupported(value, (name,), f"a metric is one number, and this has {size}; reduce it first")
        return value.item()
    return value


def _refuse(value: Any, path: Path) -> Any:
    raise unsupported(value, path, "a metric is a number, text, or a small structure of those")


def _unknown(node: dict[str, Any]) -> Any:
    raise CorruptFileError(f"a metric has a node this version does not know: {next(iter(node))}")
