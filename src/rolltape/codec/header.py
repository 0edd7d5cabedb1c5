"""What a recording's file says about itself, as values with fields: nothing outside reads the JSON.

A header that does not say what it must is a ``CorruptFileError`` that names the column and the field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rolltape.batch.json_values import Json
from rolltape.batch.tree import Tree
from rolltape.errors import CorruptFileError, FormatVersionError

KINDS = ("array", "ragged", "objects")
NUMBERS = ("float", "int", "bool")
"""Forms of plain values that are numbers."""

Bound: TypeAlias = int | tuple[int, int]
"""Where rows begin or end: one number for all, or (number of the stored bound, plus)."""


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """How one recorded column is stored."""

    name: str
    kind: str
    """``array`` (one shape for all samples), ``ragged`` (a list per sample) or ``objects`` (plain values)."""
    dtype: str = ""
    """The logical dtype; empty for plain values."""
    shape: tuple[int, ...] = ()
    """Of one sample; of one entry of the list where it is ragged."""
    layout: str = ""
    """``plain``, ``bytes``, ``span``, ``const``, ``ramp``, ``join`` or ``part``; arrays only."""
    cells: str = ""
    """The form of plain values: ``text``, ``int``, ``json``, …"""
    start: Bound | None = None
    stop: Bound | None = None
    """Where the stored part of each row begins and ends."""
    left: int | None = None
    right: int | None = None
    """The bits of the padding on either side; None where that side has none."""
    fill: int = 0
    """The bits that a ``const`` holds."""
    tail: str = ""
    """What follows a ``ramp``: ``hold`` or ``run``."""
    of: tuple[str, ...] = ()
    """The columns it is made of."""
    offset: int = 0
    """Where a ``part`` begins in the column it is part of."""

    @property
    def width(self) -> int:
        """Places in a row of one axis; 0 for everything else."""
        return self.shape[0] if self.kind == "array" and self.shape else 0

    @property
    def is_row(self) -> bool:
        """Whether each sample has a row of one axis and one width."""
        return self.kind == "array" and len(self.shape) == 1 and self.shape[0] > 0

    @property
    def elements(self) -> int:
        """Elements of one sample of an array."""
        return math.prod(self.shape)

    @property
    def is_number(self) -> bool:
        """Whether it holds real numbers."""
        if self.kind == "objects":
            return self.cells in NUMBERS
        return not self.dtype.startswith(("numpy:", "complex"))

    @property
    def is_derived(self) -> bool:
        """Whether it follows from other columns and from the row bounds, as masks and position ids do."""
        return self.layout in ("const", "ramp", "join", "part") and bool(self.shape)

    @property
    def description(self) -> str:
        """What a sample of it is, for people: ``int64 [8192]``, ``float32 [*]``, ``text``."""
        if self.kind == "objects":
            return "json" if self.cells == "tagged" else self.cells
        shape = [*(["*"] if self.kind == "ragged" else []), *map(str, self.shape)]
        return f"{self.dtype} [{', '.join(shape)}]" if shape else self.dtype

    @property
    def bounds(self) -> set[str]:
        """The Parquet columns that hold where its rows begin and end."""
        return {f"_bound{bound[0]}" for bound in (self.start, self.stop) if isinstance(bound, tuple)}


@dataclass(frozen=True, slots=True)
class StoredWhole:
    """An array that has no sample axis."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    wrap: dict[str, Json]
    """What kind of array the caller had."""
    data: str | None = None
    """Its bytes in base64 where it is small; else it is a Parquet column."""


class About(Mapping[str, Json]):
    """What was noted when a recording was made. The fields that Rolltape itself asks for are properties."""

    __slots__ = ("_node",)

    def __init__(self, node: Mapping[str, Json]) -> None:
        self._node = dict(node)

    def __getitem__(self, name: str) -> Json:
        return self._node[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._node)

    def __len__(self) -> int:
        return len(self._node)

    def __repr__(self) -> str:
        return f"About({self._node})"

    @property
    def position(self) -> int | None:
        """How many calls of stages the step had begun before this one."""
        found = self._node.get("position")
        return found if type(found) is int else None

    @property
    def order(self) -> int | None:
        """How many calls of stages the step had ended before this one ended; None on older tapes."""
        found = self._node.get("order")
        return found if type(found) is int else None

    @property
    def writer(self) -> str | None:
        """The process that wrote it, by a name that no other has; None on older tapes."""
        return self._text("writer")

    @property
    def turn(self) -> int | None:
        """How many blocks its writer had entered before that of this call; None on older tapes."""
        found = self._node.get("turn")
        return found if type(found) is int else None

    @property
    def outlived(self) -> bool:
        """Whether the call was begun after the block of its step had ended."""
        return self._node.get("outlived") is True

    @property
    def returned(self) -> bool:
        """Whether the caller got it; False where it was only computed beside a replay, to be compared."""
        return self._node.get("returned") is not False

    @property
    def cut_from(self) -> str | None:
        """The digest of the file that it was cut out of."""
        return self._text("cut_from")

    @property
    def circumstances(self) -> frozenset[str]:
        """Columns that say how it went and not what came of it: times, order, headers. Not compared."""
        found = self._node.get("circumstances")
        return frozenset(map(str, found)) if isinstance(found, list) else frozenset()

    @property
    def live_seconds(self) -> float | None:
        """What the live call took."""
        found = self._node.get("live_seconds")
        return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None

    @property
    def recorded(self) -> str | None:
        """When, in UTC."""
        return self._text("recorded")

    @property
    def fingerprint(self) -> str | None:
        """The digest of the tape's fingerprint at the time."""
        return self._text("fingerprint")

    @property
    def run(self) -> str | None:
        """The run that wrote it; None where that was not noted yet."""
        return self._text("run")

    @property
    def tape(self) -> str | None:
        """The id of the tape it was recorded onto; older recordings do not say."""
        return self._text("tape")

    @property
    def attempt(self) -> str | None:
        """Names the writing of this shard; None where one process recorded alone, and on older tapes."""
        return self._text("attempt")

    @property
    def inputs(self) -> str | None:
        """The digest of the recorded inputs; None where they were not recorded."""
        return self._text("inputs")

    @property
    def arguments(self) -> dict[str, Json] | None:
        """The digests of the arguments, by name; None where there are none."""
        found = self._node.get("arguments")
        return found if isinstance(found, dict) else None

    @property
    def collecting(self) -> list[str]:
        """The arguments that the call itself added to or took from."""
        found = self._node.get("collecting")
        return found if isinstance(found, list) else []

    @property
    def random(self) -> dict[str, Json] | None:
        """The random state that the live call left behind."""
        found = self._node.get("random")
        return found if isinstance(found, dict) else None

    @property
    def replays(self) -> bool:
        """Whether the stage is replayed; False for one that runs in every replay."""
        return self._node.get("replay") is not False

    @property
    def previous(self) -> int | None:
        """The step that the same run recorded of this stage before; None for its first."""
        found = self._node.get("previous")
        return found if type(found) is int else None

    @property
    def inside(self) -> dict[str, int]:
        """The calls of other stages that the live call made, by stage."""
        found = self._node.get("inside")
        return found if isinstance(found, dict) else {}

    def _text(self, name: str) -> str | None:
        found = self._node.get(name)
        return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a recording."""

    format: int
    samples: int
    about: About
    tree: Tree
    columns: dict[str, StoredColumn] = field(default_factory=dict)
    wholes: dict[str, StoredWhole] = field(default_factory=dict)


def parse(text: bytes, newest: int) -> Header:
    """The header as values; refuses a format above ``newest``, and what does not hold together."""
    try:
        node = json.loads(text)
        if _integer(node["format"]) > newest:
            raise FormatVersionError(
                f"the file has format {node['format']}; this Rolltape reads up to {newest}",
                hint="pip install --upgrade rolltape",
            )
        columns = {name: _column(name, entry) for name, entry in node["columns"].items()}
        wholes = {name: _whole(name, entry) for name, entry in node["wholes"].items()}
        samples = _integer(node["samples"])
        header = Header(node["format"], samples, About(node["about"]), Tree(node["tree"]), columns, wholes)
    except FormatVersionError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CorruptFileError(
            f"the header does not hold together: {type(error).__name__} {error}",
            causes=["another tool wrote or edited the file"],
        ) from None
    for column in columns.values():
        for part in column.of:
            if part not in columns:
                raise CorruptFileError(f"column {column.name!r} is made of {part!r}, which is not there")
    return header


def _column(name: str, entry: Any) -> StoredColumn:
    kind = entry["kind"]
    if kind not in KINDS:
        raise ValueError(f"column {name!r} has the unknown kind {kind!r}")
    if kind == "objects":
        return StoredColumn(name, kind, cells=str(entry["as"]))
    return StoredColumn(
        name,
        kind,
        dtype=str(entry["dtype"]),
        shape=tuple(map(_integer, entry["shape"])),
        layout=str(entry["layout"]) if kind == "array" else "",
        start=_bound(entry.get("start")),
        stop=_bound(entry.get("stop")),
        left=_bits(entry.get("left")),
        right=_bits(entry.get("right")),
        fill=_integer(entry.get("fill", 0)),
        tail=str(entry.get("tail", "")),
        of=tuple(map(str, entry.get("of", ()))),
        offset=_integer(entry.get("offset", 0)),
    )


def _whole(name: str, entry: Any) -> StoredWhole:
    shape = tuple(map(_integer, entry["shape"]))
    data = entry.get("data")
    if not isinstance(data, (str, type(None))):
        raise ValueError(f"the array {name!r} has data that is no text")
    return StoredWhole(name, str(entry["dtype"]), shape, dict(entry["wrap"]), data)


def _integer(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _bits(value: Any) -> int | None:
    return None if value is None else _integer(value)


def _bound(value: Any) -> Bound | None:
    if value is None or type(value) is int:
        return value
    at, plus = value
    if type(at) is not int or type(plus) is not int:
        raise ValueError(f"{value!r} is not a row bound")
    return at, plus
