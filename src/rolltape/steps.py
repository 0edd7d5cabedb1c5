"""Steps and sets of steps: what the trainer counts, and where the tape acts.

Pure. Knows nothing of tapes, files or modes. The text form of a set of steps is a comma separated list:

    20          one step
    0-9         a range, both ends included
    50-         50 and every later step
    0-90/10     every tenth step from 0 to 90 (a Python ``range`` with a stride); ``0-/10`` has no end
    all         every step
    (nothing)   no step
"""

from __future__ import annotations

import heapq
import operator
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, groupby
from typing import SupportsIndex, TypeAlias

from rolltape.errors import ConfigError, KeyNameError

__all__ = ["ALL_STEPS", "MAX_STEP", "NO_STEPS", "StepSelector", "StepsLike", "as_step"]

MAX_STEP = 2**63 - 1
"""The largest step: what an int64 column of a Parquet file holds."""

StepsLike: TypeAlias = "str | SupportsIndex | Iterable[SupportsIndex | str] | StepSelector | None"
"""What ``StepSelector.parse`` understands."""

# Forty digits are more than any step has; without a bound, int() itself fails on absurd texts.
_PIECE = re.compile(r"([0-9]{1,40})(?:\s*(-)\s*([0-9]{1,40})?(?:\s*/\s*([0-9]{1,40}))?)?")
_HINT = 'write steps like "0-9,20,50-", or give a list, a range, or "all"'


def as_step(value: object, what: str = "step") -> int:
    """Return ``value`` as a plain ``int``, or raise ``KeyNameError`` if it is not a valid step.

    Anything with ``__index__`` is fine (numpy and torch integers); bools, floats and negatives are not.
    ``what`` names the number in the message.

    >>> as_step(3)
    3
    """
    if type(value) is int and 0 <= value <= MAX_STEP:  # the usual case; the rest takes ten times longer
        return value
    # A dtype tells numpy and torch booleans, which are not ``bool``, from integers.
    is_bool = isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))
    if not isinstance(value, SupportsIndex) or is_bool:
        raise _not_a_step(what, value)
    try:
        number = operator.index(value)
    except TypeError:
        raise _not_a_step(what, value) from None
    if not 0 <= number <= MAX_STEP:
        raise _not_a_step(what, value)
    return number


def _not_a_step(what: str, value: object) -> KeyNameError:
    return KeyNameError(
        f"{what} must be a whole number from 0 to 2**63-1, not {_shown(value)} ({type(value).__name__})",
        hint="pass an int that is not negative",
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True, slots=True)
class StepSelector:
    """An immutable set of steps. Build it with ``parse``; its cost grows with its pieces, not its steps.

    Two selectors are equal when they print the same. Ranges without a stride are merged, so for them that is
    equality as sets; a range with a stride is kept as it was given.

    >>> steps = StepSelector.parse("20, 5-9, 0-4, 50-")
    >>> str(steps)
    '0-9,20,50-'
    >>> 7 in steps, 21 in steps, steps.bounded
    (True, False, False)
    """

    runs: tuple[range, ...]
    """Ranges of stride 1: sorted, disjoint, never touching."""

    strided: tuple[range, ...] = ()
    """Ranges of a larger stride, three steps or more: sorted, none inside another range."""

    @classmethod
    def parse(cls, value: object) -> StepSelector:
        """Read a ``StepsLike``: text, an int, ints (or texts), a range, a selector; ``None`` means all.

        Raises ``ConfigError`` that names the piece it cannot read.

        >>> list(StepSelector.parse([3, 1, 2, "7-8"]))
        [1, 2, 3, 7, 8]
        >>> str(StepSelector.parse(range(0, 100, 10)))
        '0-90/10'
        """
        if isinstance(value, StepSelector):
            return value
        parts = _merge(chain.from_iterable(map(_spelled_out, _read(value))))
        strided = [
            part for part in parts if part.step > 1 and not any(_inside(part, other) for other in parts)
        ]
        return cls(
            runs=tuple(part for part in parts if part.step == 1),
            strided=tuple(sorted(strided, key=_reading_order)),
        )

    @property
    def bounded(self) -> bool:
        """Whether the set has a last step, and so can be iterated."""
        return not any(map(_is_open, chain(self.runs, self.strided)))

    def __contains__(self, step: object) -> bool:
        try:
            number = as_step(step)
        except KeyNameError:
            return False
        before = bisect_right(self.runs, number, key=lambda run: run.start)
        if before and number in self.runs[before - 1]:
            return True
        return any(number in part for part in self.strided)

    def __iter__(self) -> Iterator[int]:
        if not self.bounded:
            raise ConfigError(
                f'steps "{self}" has no last step, so it cannot be listed',
                hint='give the last step, as in "50-99"',
            )
        steps: Iterable[int] = chain.from_iterable(self.runs)
        if not self.strided:
            return iter(steps)
        return (step for step, _ in groupby(heapq.merge(steps, *self.strided)))

    def __bool__(self) -> bool:
        return bool(self.runs or self.strided)

    def __str__(self) -> str:
        if self.runs == (_EVERY,):
            return "all"
        return ",".join(map(_text, sorted(self.runs + self.strided, key=_reading_order)))


def _read(value: object) -> Iterator[range]:
    """The ranges a ``StepsLike`` names, in its own order."""
    if value is None:
        yield _EVERY
    elif isinstance(value, str):
        yield from _read_text(value)
    elif isinstance(value, range):
        yield _read_range(value)
    elif _is_scalar(value):
        yield _read_number(value)
    elif isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, Mapping)):
        for item in value:
            yield from _read_text(item) if isinstance(item, str) else [_read_number(item)]
    else:
        raise ConfigError(f"invalid steps: {_shown(value)} ({type(value).__name__})", hint=_HINT)


def _is_scalar(value: object) -> bool:
    # An array of steps has ``__index__`` too; its dimensions tell it from one step.
    return isinstance(value, SupportsIndex) and not getattr(value, "ndim", 0)


def _read_number(value: object) -> range:
    try:
        step = as_step(value)
    except KeyNameError as error:
        raise ConfigError(f"steps: {error.what}", hint=_HINT) from None
    return range(step, step + 1)


def _read_range(value: range) -> range:
    if not value:
        return range(0)
    for end in (value[0], value[-1]):
        if not 0 <= end <= MAX_STEP:
            raise ConfigError(f"steps: {value!r} reaches {end}; steps must be from 0 to 2**63-1", hint=_HINT)
    return value if value.step > 0 else value[::-1]


def _read_text(text: str) -> Iterator[range]:
    if text.strip().lower() == "all":
        yield _EVERY
    elif text.strip():
        yield from (_read_piece(piece.strip(), text) for piece in text.split(","))


def _read_piece(piece: str, text: str) -> range:
    def wrong(why: str) -> ConfigError:
        return ConfigError(f"steps: {_shown(piece)} in {_shown(text)} {why}", hint=_HINT)

    match = _PIECE.fullmatch(piece)
    if not match:
        raise wrong(
            "is negative" if re.fullmatch(r"-\s*[0-9]+", piece) else "is not a step or a range of steps"
        )
    first = int(match[1])
    last = int(match[3]) if match[3] else MAX_STEP if match[2] else first
    stride = int(match[4] or 1)
    if max(first, last) > MAX_STEP:
        raise wrong("is larger than 2**63-1")
    if last < first:
        raise wrong("ends before it starts")
    if stride < 1:
        raise wrong("has a stride of 0")
    return range(first, last + 1, stride)


def _spelled_out(part: range) -> Iterable[range]:
    """A stride over one or two steps says nothing: name the steps instead, so that they can be merged."""
    if part.step == 1 or (part and part[-1] - part[0] >= 2 * part.step):
        return [part] if part else []
    return [range(step, step + 1) for step in part]


def _merge(parts: Iterable[range]) -> list[range]:
    """Join the ranges of one stride and phase that overlap or touch."""
    merged: list[range] = []
    for part in sorted(parts, key=lambda part: (part.step, part.start % part.step, part.start)):
        before = merged[-1] if merged else part
        same_beat = before.step == part.step and (part.start - before.start) % part.step == 0
        if merged and same_beat and part.start <= before[-1] + part.step:
            merged[-1] = range(before.start, max(before[-1], part[-1]) + 1, part.step)
        else:
            merged.append(range(part.start, part[-1] + 1, part.step))
    return merged


def _inside(part: range, other: range) -> bool:
    whole = part[0] in other and part[-1] in other and part.step % other.step == 0
    return whole and part is not other


def _is_open(part: range) -> bool:
    return part[-1] + part.step > MAX_STEP


def _reading_order(part: range) -> tuple[int, int, int]:
    return part.start, part.step, part.stop


def _text(part: range) -> str:
    if part.step == 1 and part[0] == part[-1] < MAX_STEP:
        return str(part.start)
    end = "" if _is_open(part) else part[-1]
    return f"{part.start}-{end}" + (f"/{part.step}" if part.step > 1 else "")


_EVERY = range(MAX_STEP + 1)

ALL_STEPS = StepSelector((_EVERY,))
"""Every step."""

NO_STEPS = StepSelector(())
"""No step."""
