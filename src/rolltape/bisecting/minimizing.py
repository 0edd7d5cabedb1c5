"""The smallest set of differences that makes a replay diverge: delta debugging (ddmin). Pure.

A set that neither runs clean nor diverges, because the command crashes with it, is unresolved: it takes
nothing away and adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def minimize(items: Sequence[T], diverges: Callable[[tuple[T, ...], int], bool]) -> tuple[T, ...]:
    """Some of the items that diverge together, none of which can be left out; a single one where one does.

    All items together are known to diverge, and none of them is known not to. ``diverges`` is asked about
    some of them, and told about how many further questions there will be.

    >>> asked = []
    >>> def both(some, left):
    ...     asked.append(some)
    ...     return {2, 7} <= set(some)
    >>> minimize(range(8), both), len(asked) < 40
    ((2, 7), True)
    """
    found = _ddmin(tuple(items), lambda some, left: diverges(some, left + len(items)))
    if len(found) > 1:  # there may be another way to diverge, for which one is enough
        for at, item in enumerate(items):
            if item not in found and diverges((item,), len(items) - at - 1):
                return (item,)
    return found


def _ddmin(items: tuple[T, ...], diverges: Callable[[tuple[T, ...], int], bool]) -> tuple[T, ...]:
    parts = 2
    while len(items) > 1:
        subsets = _split(items, parts)
        for at, subset in enumerate(subsets):
            if diverges(subset, questions_left(len(items), parts) - at - 1):
                items, parts = subset, 2
                break
        else:
            for at, subset in enumerate(subsets if parts > 2 else []):  # of two, each is the other's rest
                rest = tuple(item for item in items if item not in subset)
                if diverges(rest, questions_left(len(items), parts) - len(subsets) - at - 1):
                    items, parts = rest, max(parts - 1, 2)
                    break
            else:
                if parts >= len(items):
                    return items
                parts = min(2 * parts, len(items))
    return items


def questions_left(items: int, parts: int = 2) -> int:
    """How many questions there are from here on if no answer takes anything away.

    >>> questions_left(12), questions_left(2), questions_left(1)
    (50, 2, 0)
    """
    total = 0
    while items > 1:
        total += parts if parts == 2 else 2 * parts
        if parts >= items:
            break
        parts = min(2 * parts, items)
    return total


def _split(items: tuple[T, ...], parts: int) -> list[tuple[T, ...]]:
    """The items in so many parts of about the same size.

    >>> _split((1, 2, 3, 4, 5), 3)
    [(1,), (2, 3), (4, 5)]
    """
    ends = [len(items) * at // parts for at in range(parts + 1)]
    return [items[begin:end] for begin, end in pairwise(ends)]
