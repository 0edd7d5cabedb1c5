"""The metrics of a run: one JSON line per step, floats exact, each line with its own checksum.

    {"crc":"5be3a1f0","bytes":40,"step":3,"metrics":{"pg_loss":0.25}}

``bytes`` is the length of the line from ``"step"`` on, and ``crc`` the CRC-32 of that part: a line that a
crash cut short is shorter than it says, and is reported and left out; one that was altered is an error.
``rank`` follows ``step`` where several processes log. Of several lines for one step the later values hold;
``"new":true`` (mode rewrite) says that those before it do not count.
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rolltape.batch.plain import Path, from_json, to_json, unsupported
from rolltape.errors import CorruptFileError, StepMissingError
from rolltape.key import metrics_path
from rolltape.storage import Storage

log = logging.getLogger("rolltape")

_HEAD = b'{"crc":"????????","bytes":'
_LINE = re.compile(rb'\{"crc":"([0-9a-f]{8})","bytes":([0-9]+),(.*)', re.DOTALL)


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
    step: int, metrics: Mapping[str, Any], rank: int | None = None, *, new: bool = False
) -> bytes:
    """One line of ``metrics.jsonl``, of what ``plain_metrics`` returned."""
    node: dict[str, Any] = {"step": step}
    if rank is not None:
        node["rank"] = rank
    if new:
        node["new"] = True
    node["metrics"] = to_json(dict(metrics), _refuse)
    body = json.dumps(node, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()[1:]
    return b'{"crc":"%08x","bytes":%d,' % (zlib.crc32(body), len(body)) + body


def read_metrics(storage: Storage, split: str, rank: int = 0) -> dict[int, dict[str, Any]]:
    """All metrics of one rank by step."""
    found: dict[int, dict[str, Any]] = {}
    for node in _lines(storage, split, rank):
        if node.get("new"):
            found.pop(node["step"], None)
        found.setdefault(node["step"], {}).update(from_json(node["metrics"], _unknown))
    return found


def logged_steps(storage: Storage, split: str, rank: int = 0) -> set[int]:
    """The steps that have metrics."""
    return {node["step"] for node in _lines(storage, split, rank)}


def _lines(storage: Storage, split: str, rank: int) -> Iterator[dict[str, Any]]:
    """Every complete line of a rank, in order."""
    name = metrics_path(split)
    try:
        text = bytes(storage.read(name))
    except StepMissingError:
        return
    for number, line in enumerate(text.split(b"\n"), 1):
        where = f"{storage.location}/{name}, line {number}"
        body = check_line(line, where)
        if body is not None:
            node: dict[str, Any] = json.loads(b"{" + body)
            if node.get("rank", 0) == rank:
                yield node
        elif line:
            log.warning("%s has no end and is left out: it was being written when its process died", where)


def check_line(line: bytes, where: str) -> bytes | None:
    """What a line says, if its checksum proves it; None if it was cut short."""
    match = _LINE.fullmatch(line)
    if match is not None:
        crc, size, body = match.groups()
        if zlib.crc32(body) == int(crc, 16):
            return body
        if len(body) < int(size):
            return None
    elif _is_half_a_head(line):
        return None
    raise CorruptFileError(
        "a line of metrics does not match its checksum",
        where=where,
        causes=["the file was edited, or altered by a disk, copy or transfer error"],
        hint="copy the file again from its source, or remove that line",
    )


def _is_half_a_head(line: bytes) -> bool:
    begins = all(want in (char, ord("?")) for char, want in zip(line, _HEAD, strict=False))
    return begins and (len(line) <= len(_HEAD) or line[len(_HEAD) :].isdigit())


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
