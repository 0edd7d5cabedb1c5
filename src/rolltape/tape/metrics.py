"""The metrics of a run: one JSON line per step, floats exact."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rolltape.batch.plain import Path, from_json, to_json, unsupported
from rolltape.errors import CorruptFileError, StepMissingError
from rolltape.key import metrics_path
from rolltape.storage import Storage


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics with tensors and arrays of one element as the numbers they are; copies, nothing else."""
    if not isinstance(metrics, Mapping):
        raise unsupported(metrics, (), "metrics are a mapping from names to values")
    return {str(name): _number(value, str(name)) for name, value in metrics.items()}


def metrics_line(step: int, metrics: Mapping[str, Any]) -> bytes:
    """One line of ``metrics.jsonl``."""
    node = {"step": step, "metrics": to_json(dict(metrics), _refuse)}
    return json.dumps(node, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def read_metrics(storage: Storage, split: str) -> dict[int, dict[str, Any]]:
    """All metrics by step. Of several lines for one step the last holds; a half last line is left out."""
    name = metrics_path(split)
    try:
        text = bytes(storage.read(name))
    except StepMissingError:
        return {}
    found: dict[int, dict[str, Any]] = {}
    lines = text.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            node = json.loads(line) if line else None
        except ValueError as error:
            if number == len(lines) or _cut_short(line):  # written when the process died
                continue
            where = f"{storage.location}/{name}, line {number}"
            raise CorruptFileError(f"a line of metrics cannot be read: {error}", where=where) from None
        if node is not None:
            found.setdefault(node["step"], {}).update(from_json(node["metrics"], _unknown))
    return found


def _cut_short(line: bytes) -> bool:
    return line.startswith(b'{"step":') and not line.endswith(b"}}")


def _number(value: Any, name: str) -> Any:
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "detach"):
        if getattr(value, "size", 1) != 1 and getattr(value, "numel", lambda: 0)() != 1:
            raise unsupported(value, (name,), "a metric is one number; reduce it first")
        return value.item()
    return value


def _refuse(value: Any, path: Path) -> Any:
    raise unsupported(value, path, "a metric is a number, text, or a small structure of those")


def _unknown(node: dict[str, Any]) -> Any:
    raise CorruptFileError(f"a metric has a node this version does not know: {next(iter(node))}")
