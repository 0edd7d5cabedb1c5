"""Samples as columns: what a rollout function returns, parted into its samples and the shape they were in.

Each attribute of the samples becomes a column, so that tokens and log-probs are stored, and can be read, as
those of any other batch; groups, groups of groups and data sets come back nested as they were. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rolltape.batch import register_adapter


@dataclass(frozen=True, slots=True)
class Place:
    """Where samples were: a list of ``count`` of them, or one that stood alone."""

    count: int | None = None


register_adapter(Place, name="slime.place")


def take_apart(output: Any, sample: type) -> dict[str, Any]:
    """What is recorded of an output: ``fields``, a column per attribute of its samples, and the rest."""
    found: list[Any] = []
    rest = _without(output, sample, found)
    attributes = [vars(one) for one in found]
    names = [name for name in attributes[0] if all(name in other for other in attributes)] if found else []
    parts = {"fields": {name: [own[name] for own in attributes] for name in names}, "output": rest}
    if any(len(own) > len(names) for own in attributes):  # somebody gave attributes to some of the samples
        parts["more"] = [{name: own[name] for name in own if name not in names} for own in attributes]
    return parts


def put_together(parts: dict[str, Any], sample: type) -> Any:
    """The output that was taken apart, its samples of the class given."""
    fields = parts["fields"]
    count = len(next(iter(fields.values()))) if fields else 0
    more: Sequence[dict[str, Any]] = parts.get("more") or [{}] * count
    return _with(parts["output"], (_sample(sample, fields, row, more[row]) for row in range(count)))


def _without(node: Any, sample: type, found: list[Any]) -> Any:
    """The same tree with places in it; the samples are appended to ``found`` in the order of the places."""
    if type(node) is sample:
        found.append(node)
        return Place()
    if type(node) is list:
        if node and all(type(one) is sample for one in node):
            found += node
            return Place(len(node))
        return [_without(one, sample, found) for one in node]
    if type(node) is dict:
        return {name: _without(one, sample, found) for name, one in node.items()}
    if _is_output(node):
        parts = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
        return type(node)(**_without(parts, sample, found))
    return node


def _with(node: Any, samples: Iterator[Any]) -> Any:
    if type(node) is Place:
        if node.count is None:
            return next(samples)
        return [next(samples) for _ in range(node.count)]
    if type(node) is list:
        return [_with(one, samples) for one in node]
    if type(node) is dict:
        return {name: _with(one, samples) for name, one in node.items()}
    if _is_output(node):
        parts = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
        return type(node)(**_with(parts, samples))
    return node


def _is_output(node: Any) -> bool:
    """Whether this is what outputs are wrapped in: ``RolloutFnTrainOutput``, ``RolloutFnEvalOutput``."""
    return dataclasses.is_dataclass(type(node)) and type(node).__name__.startswith("RolloutFn")


def _sample(sample: type, fields: dict[str, Sequence[Any]], row: int, more: dict[str, Any]) -> Any:
    made: Any = object.__new__(sample)
    vars(made).update({name: column[row] for name, column in fields.items()} | more)
    return made
