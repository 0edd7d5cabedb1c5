"""The arguments of a stage by their digests: kept with every recording, compared when it is replayed.

Pure but for the arguments it looks at. ``inputs`` is about stages that keep the arguments themselves.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rolltape.batch.digest import Digest, LeftOut, digest
from rolltape.batch.scalars import Json
from rolltape.errors import CorruptFileError

CLOSE = 1e-3
"""Two settings that are floats may be this far apart, relatively, and be the same one computed anew."""


@dataclass(frozen=True, slots=True)
class Naming:
    """What the arguments of a function are called."""

    signature: inspect.Signature | None
    """None where the function does not say: then they go by their places."""
    skipped: str | None = None
    """``self`` or ``cls``, which is nobody's argument."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Naming:
        """The names that a function gives its arguments."""
        try:
            signature = inspect.signature(function)
        except (ValueError, TypeError):
            return cls(None)
        first = next(iter(signature.parameters), None)
        return cls(signature, first if first in ("self", "cls") else None)

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, defaults included."""
        if self.signature is not None:
            try:
                bound = self.signature.bind(*args, **kwargs)
            except TypeError:  # a decorator shows the signature of what it wraps, and adds arguments itself
                pass
            else:
                bound.apply_defaults()
                return {name: value for name, value in bound.arguments.items() if name != self.skipped}
        return {**{f"argument {at}": value for at, value in enumerate(args)}, **kwargs}

    def default(self, name: str) -> Any:
        """What an argument is where it is not given; ``inspect.Parameter.empty`` if it must be."""
        known = self.signature.parameters.get(name) if self.signature is not None else None
        return inspect.Parameter.empty if known is None else known.default


@dataclass(frozen=True, slots=True)
class Arguments:
    """The digests of the arguments of one call."""

    digests: Mapping[str, Digest | None]
    """By name; None for one that has no digest."""
    left_out: tuple[LeftOut, ...] = ()
    """What is not part of them."""
    naming: Naming = field(default_factory=lambda: Naming(None))
    seconds: float = 0.0
    """What it took to make them."""
    _seen: tuple[tuple[str, Any, Sequence[int]], ...] = ()
    """Lists, dicts and sets with what they held, one level deep."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any], naming: Naming) -> Arguments:
        """Look at the arguments as they are now; the live call may change them."""
        started = time.monotonic()
        digests: dict[str, Digest | None] = {}
        left_out = [LeftOut(naming.skipped, "the object itself", False)] if naming.skipped else []
        seen = [(name, value, _held(value)) for name, value in arguments.items() if type(value) in _GROWING]
        for name, value in arguments.items():
            digests[name], without = digest(value, name)
            left_out += without
        return cls(digests, tuple(left_out), naming, time.monotonic() - started, tuple(seen))

    @property
    def changed(self) -> list[str]:
        """The lists, dicts and sets that the call itself has added to or taken from: what it collects in.

        A replay does not make the call, so there they are not what they were when it was recorded.
        """
        return [name for name, value, before in self._seen if _held(value) != before]

    def to_json(self) -> Json:
        """As they are stored with a recording."""
        return {name: None if one is None else one.to_json() for name, one in self.digests.items()}


_GROWING = (list, dict, set)
_EMPTY_LIST, _EMPTY_MAPPING = "a list of 0", "0 entries"


def _held(value: Any) -> list[int]:
    return [id(item) for item in (value.values() if type(value) is dict else value)]


def read_arguments(node: Mapping[str, Json], where: str) -> dict[str, Digest | None]:
    """The digests that a recording has."""
    try:
        return {name: None if one is None else Digest.from_json(one) for name, one in node.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(
            f"the digests of its arguments cannot be read: {error!r}", where=where
        ) from None


@dataclass(frozen=True, slots=True)
class Difference:
    """A place where the arguments of a replay are not those of the recording."""

    argument: str
    recorded: str
    given: str
    may_differ: bool = False
    """Whether a run that is the same can differ there: floats, random names, arguments that were renamed."""
    is_size: bool = False
    """Whether there are more or fewer entries."""
    is_order: bool = False
    """Whether the same entries come in another order."""


def compare_arguments(
    recorded: Mapping[str, Digest | None], given: Arguments, collecting: Sequence[str] = ()
) -> list[Difference]:
    """Every argument that differs, by name; those ``collecting`` were changed by the call itself."""
    found: list[Difference] = []
    for name, was in recorded.items():
        now = given.digests.get(name)
        if was is not None and now is not None:
            # What a call collects in grows as calls are made, and stays empty where none is.
            empty = name in collecting and now.shown in (_EMPTY_LIST, _EMPTY_MAPPING)
            inside = _differences(name, name, was, now)
            found += (replace(one, may_differ=True) if empty else one for one in inside)
    return [*found, *_renamed(recorded, given)]


def _renamed(recorded: Mapping[str, Digest | None], given: Arguments) -> Iterator[Difference]:
    """Arguments that only one side has: as many on both sides are the same ones under other names."""
    gone = [(name, was) for name, was in recorded.items() if was is not None and name not in given.digests]
    new = [
        (name, now)
        for name, now in given.digests.items()
        if now is not None and name not in recorded and not _is_default(given.naming, name, now)
    ]
    if len(gone) == len(new):
        for (_, was), (name, now) in zip(gone, new, strict=True):
            yield from _differences(name, name, was, now)
        return
    for name, was in gone:
        yield Difference(name, f"`{name}` ({was.shown})", "no such argument", may_differ=True)
    for name, now in new:
        yield Difference(name, f"no argument `{name}`", f"one ({now.shown})", may_differ=True)


def _same(recorded: Digest | None, given: Digest | None) -> bool:
    return recorded is not None and given is not None and not [*_differences("", "", recorded, given)]


def _is_default(naming: Naming, name: str, given: Digest) -> bool:
    default = naming.default(name)
    return default is not inspect.Parameter.empty and _same(digest(default, name)[0], given)


def _differences(argument: str, where: str, recorded: Digest, given: Digest) -> Iterator[Difference]:
    if recorded.number is not None and given.number is not None:
        yield from _numbers(argument, where, recorded.number, given.number)
        return
    if (recorded.exact, recorded.soft) == (given.exact, given.soft):
        return
    inside: list[Difference] = []
    if recorded.parts and given.parts:
        inside = list(_in_parts(argument, where, recorded.parts, given.parts))
    elif given.parts and len(recorded.rows) == len(given.parts):  # only what each is was kept, not its name
        pairs = zip(recorded.rows, given.parts.items(), strict=True)
        other = [name for was, (name, now) in pairs if was != now.exact[:8]]
        inside = [Difference(argument, f"`{where}.{name}`", "another one") for name in other]
    if inside:
        yield from inside
    elif recorded.exact == given.exact:
        names = [*recorded.soft, *(name for name in given.soft if name not in recorded.soft)]
        other = [name for name in names if recorded.soft.get(name) != given.soft.get(name)]
        inside_of = ", ".join(f"`{name}`" for name in other if name and name != where.rsplit(".", 1)[-1])
        values = f"other values in {inside_of}" if inside_of else "other values"
        yield Difference(argument, f"`{where}` ({recorded.shown})", values, may_differ=True)
    elif recorded.shown != given.shown:
        size = recorded.shown.rstrip("0123456789") == given.shown.rstrip("0123456789")
        yield Difference(
            argument, f"`{where}`: {recorded.shown}", given.shown, is_size=size or "[" in recorded.shown
        )
    elif len(recorded.rows) == len(given.rows) > 0:
        yield _rows(argument, where, recorded.rows, given.rows)
    else:
        yield Difference(argument, f"`{where}` ({recorded.shown})", "another one")


def _in_parts(
    argument: str, where: str, recorded: Mapping[str, Digest], given: Mapping[str, Digest]
) -> Iterator[Difference]:
    for name in [*recorded, *(name for name in given if name not in recorded)]:
        inner = f"{where}.{name}"
        if name not in given:
            yield Difference(argument, f"`{inner}`: {recorded[name].shown}", "(absent)")
        elif name not in recorded:
            yield Difference(argument, f"`{inner}`: (absent)", given[name].shown)
        else:
            yield from _differences(argument, inner, recorded[name], given[name])


def _numbers(argument: str, where: str, recorded: float, given: float) -> Iterator[Difference]:
    if recorded == given:
        return
    whole = type(recorded) is int and type(given) is int
    close = not whole and math.isclose(recorded, given, rel_tol=CLOSE)
    yield Difference(argument, f"`{where}` = {recorded!r}", repr(given), may_differ=close)


def _rows(argument: str, where: str, recorded: tuple[str, ...], given: tuple[str, ...]) -> Difference:
    count = len(recorded)
    if sorted(recorded) == sorted(given):
        order = f"the same {count} entries in another order"
        return Difference(argument, f"`{where}` ({count} entries)", order, is_order=True)
    other = [at for at, (old, new) in enumerate(zip(recorded, given, strict=True)) if old != new]
    how = "another one" if len(other) == 1 else f"another one, and {len(other)} of {count} entries differ"
    return Difference(argument, f"`{where}[{other[0]}]`", how)
