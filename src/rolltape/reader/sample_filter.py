"""Which samples are wanted, said in a line: ``reward > 0.9 and 0.2 <= pass_rate <= 0.8 and not truncated``.

One language for pools, for ``rolltape filter`` and for ``rolltape.ray.read``. It is read, never run: names of
columns, numbers, texts, comparisons, ``in``, ``is None``, ``and``, ``or``, ``not``, and nothing else. What is
missing, or not a number, is unknown: a comparison with it is neither true nor false, whatever is negated,
and a row for which the whole is unknown is not taken.

>>> import pyarrow as pa
>>> rows = pa.table({"reward": [1.0, None, 0.0], "step": [0, 1, 2]})
>>> parse_filter("not reward > 0.5").sieve(rows.schema).rows(rows).tolist()
[2]
>>> parse_filter("reward is None or step in (0, 7)").sieve(rows.schema).rows(rows).tolist()
[0, 1]
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rolltape.errors import ConfigError
from rolltape.reader.visible import visible

MOST_CHARACTERS = 20_000
MOST_DEPTH = 50
COLUMN = "column"
"""The one function: ``column("batch/score") > 1`` for names that are no words."""
EXAMPLE = "as in: reward > 0.9 and 0.2 <= pass_rate <= 0.8 and not truncated and finish in ('stop', 'eos')"
_AT = "\0row"
"""Numbers the rows while they are sifted; no recorded column has such a name."""
_COMPARE = {
    ast.Lt: pc.less, ast.LtE: pc.less_equal, ast.Gt: pc.greater, ast.GtE: pc.greater_equal,
    ast.Eq: pc.equal, ast.NotEq: pc.not_equal,
}  # fmt: skip
_UNKNOWN = pa.scalar(None, pa.bool_())


@dataclass(frozen=True, slots=True)
class Sieve:
    """Which rows are wanted, and the columns that tell."""

    where: pc.Expression
    needs: frozenset[str]

    def rows(self, table: pa.Table) -> np.ndarray:
        """The numbers of the rows that are wanted."""
        numbered = table.select(sorted(self.needs)).append_column(_AT, pa.array(np.arange(table.num_rows)))
        found: np.ndarray = numbered.filter(self.where)[_AT].to_numpy()
        return found


@dataclass(frozen=True, slots=True)
class Filter:
    """An expression that was read: terms that must all be true."""

    text: str
    terms: tuple[ast.expr, ...]

    def names(self) -> frozenset[str]:
        """The columns it names."""
        return frozenset(name for term in self.terms for name in _names(term))

    def split(self, known: frozenset[str]) -> tuple[Filter | None, Filter | None]:
        """What these columns decide alone, and what takes others."""
        first = tuple(term for term in self.terms if known >= _names(term))
        rest = tuple(term for term in self.terms if not known >= _names(term))
        one, other = (Filter(self.text, terms) if terms else None for terms in (first, rest))
        return one, other

    def sieve(self, schema: pa.Schema) -> Sieve:
        """The same for rows with these columns; an error names one that is not there, or does not fit."""
        for name in sorted(self.names()):
            if name not in schema.names:
                raise unknown_column(name, schema.names, f"where: {self.text}")
        reading = _Reading(self.text, schema)
        found = reading.truth(self.terms[0])
        for term in self.terms[1:]:
            found = found & reading.truth(term)
        return Sieve(found, self.names())


def parse_filter(text: str) -> Filter:
    """Read an expression; an error says where it is not one."""
    if not isinstance(text, str) or not text.strip() or len(text) > MOST_CHARACTERS:
        many = isinstance(text, str) and len(text) > MOST_CHARACTERS
        what = f"it has more than {MOST_CHARACTERS} characters" if many else "there is no expression in it"
        raise ConfigError(f"where cannot be read: {what}", hint=EXAMPLE)
    try:
        node = ast.parse(text.strip().replace("\n", " "), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        at = f" at character {error.offset}" if isinstance(error, SyntaxError) and error.offset else ""
        said = (
            error.msg if isinstance(error, SyntaxError) else "it is nested too deeply, or holds a null byte"
        )
        raise ConfigError(f"where cannot be read{at}: {said}", where=visible(text), hint=EXAMPLE) from None
    _check(node, text, 0)
    return Filter(text.strip(), tuple(_terms(node)))


def sieve(where: str | pc.Expression, schema: pa.Schema) -> Sieve:
    """A filter for rows of a schema, of an expression in text or of pyarrow."""
    if isinstance(where, str):
        return parse_filter(where).sieve(schema)
    empty = schema.empty_table()
    try:
        empty.filter(where)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ConfigError(
            f"where cannot be computed: {str(error).splitlines()[0]}",
            causes=[f"columns: {', '.join(f'{field.name} ({field.type})' for field in schema)}"],
            hint='pass text, "reward > 0.9", or an expression of pyarrow: '
            'pyarrow.compute.field("reward") > 0.9',
        ) from None
    return Sieve(where, frozenset(name for name in schema.names if _needs(where, empty, name)))


def unknown_column(name: str, known: Collection[str], where: str) -> ConfigError:
    """The error for a column that there is not, with the one that was probably meant."""
    lower = {one.lower(): one for one in known}
    last = {one.rsplit("/", 1)[-1].lower(): one for one in known}
    near = get_close_matches(name.lower(), [*lower, *last], n=1, cutoff=0.6)
    meant = (lower.get(near[0]) or last[near[0]]) if near else None
    written = meant if meant is None or meant.isidentifier() else f'{COLUMN}("{meant}")'
    return ConfigError(
        f"there is no column {name!r}{f'; did you mean {written}?' if written else ''}",
        where=visible(where),
        hint=f"columns: {', '.join(map(visible, sorted(known)))}",
    )


def _needs(where: pc.Expression, empty: pa.Table, name: str) -> bool:
    try:
        empty.drop_columns([name]).filter(where)
    except (pa.ArrowException, ValueError):
        return True
    return False


# -- reading -----------------------------------------------------------------------------------------------


def _terms(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        for value in node.values:
            yield from _terms(value)
    else:
        yield node


def _is_column(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Call))


def _column(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    assert isinstance(node, ast.Call)
    argument = node.args[0]
    assert isinstance(argument, ast.Constant)
    return str(argument.value)


def _names(node: ast.expr) -> set[str]:
    found = {node.id} if isinstance(node, ast.Name) else set()
    if isinstance(node, ast.Call):
        return {_column(node)}
    return found.union(
        *(_names(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
    )


def _check(node: ast.expr, text: str, depth: int) -> None:
    """Refuse whatever is not of the language."""
    if depth > MOST_DEPTH:
        raise ConfigError("where is nested too deeply", where=visible(text[:200]), hint=EXAMPLE)
    if isinstance(node, ast.BoolOp):
        inner: list[ast.expr] = node.values
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = [node.operand]
    elif isinstance(node, ast.Compare):
        inner = [node.left, *node.comparators]
        for side, op in zip(node.comparators, node.ops, strict=True):
            if isinstance(op, (ast.In, ast.NotIn)):
                _values(side, text)
                inner.remove(side)
    elif isinstance(node, ast.Call):
        fits = isinstance(node.func, ast.Name) and node.func.id == COLUMN and not node.keywords
        if not fits or len(node.args) != 1 or not _is_text(node.args[0]):
            raise _refused(node, text, f'there are no functions but {COLUMN}("name")')
        return
    elif isinstance(node, ast.Name):
        return
    else:
        _constant(node, text)
        return
    for child in inner:
        _check(child, text, depth + 1)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _constant(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _constant(node.operand, text)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Constant) and (
        node.value is None or isinstance(node.value, (bool, int, float, str))
    ):
        value = node.value
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise _refused(node, text, "a number of more than 64 bits")
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise _refused(node, text, "a lone surrogate")
        return value
    raise _refused(node, text, "only names of columns, numbers, texts and comparisons are read")


def _values(node: ast.expr, text: str) -> list[Any]:
    if not isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        raise _refused(node, text, "`in` takes a list: step in (0, 1, 2)")
    found = [_constant(one, text) for one in node.elts]
    if any(one is None for one in found):
        raise _refused(node, text, "ask for what is missing with `is None`")
    return found


def _refused(node: ast.expr, text: str, why: str) -> ConfigError:
    part = ast.get_source_segment(text.strip().replace("\n", " "), node) or text
    return ConfigError(
        f"where cannot be read at {visible(part[:80])!r}: {why}", where=visible(text[:500]), hint=EXAMPLE
    )


# -- meaning -----------------------------------------------------------------------------------------------


class _Reading:
    """Makes an expression of pyarrow for rows of a schema."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text, self._schema = text, schema

    def truth(self, node: ast.expr) -> pc.Expression:
        """True, false or unknown for each row."""
        if isinstance(node, ast.BoolOp):
            found = [self.truth(value) for value in node.values]
            result = found[0]
            for one in found[1:]:
                result = result & one if isinstance(node.op, ast.And) else result | one
            return result
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self.truth(node.operand)
        if isinstance(node, ast.Compare):
            return self._compared(node)
        if _is_column(node):
            name = _column(node)
            if self._kind(name) != "truth":
                why = f"{name} is no column of true and false; compare it with something"
                raise _refused(node, self._text, why)
            return pc.field(name)
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            return pc.scalar(node.value)
        raise _refused(node, self._text, "this is neither true nor false")

    def _compared(self, node: ast.Compare) -> pc.Expression:
        sides = [node.left, *node.comparators]
        result = None
        for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
            one = self._one(left, op, right)
            result = one if result is None else result & one
        return result

    def _one(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> pc.Expression:
        if isinstance(op, (ast.Is, ast.IsNot)):
            return self._missing(left, op, right)
        if isinstance(op, (ast.In, ast.NotIn)):
            return self._among(left, op, right)
        if not (_is_column(left) or _is_column(right)):
            raise _refused(left, self._text, "a comparison names a column")
        kinds = {self._kind_of(left), self._kind_of(right)}
        if None in kinds:
            raise _refused(right, self._text, "ask for what is missing with `is None`")
        if len(kinds) > 1:
            said = " and ".join(f"{self._shown(side)} is {self._kind_of(side)}" for side in (left, right))
            raise _refused(left, self._text, f"{said}: they cannot be compared")
        found = _COMPARE[type(op)](self._operand(left), self._operand(right))
        for side in (left, right):
            found = self._unless_nan(side, found)
        return found

    def _missing(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> pc.Expression:
        if not _is_column(left) or not (isinstance(right, ast.Constant) and right.value is None):
            raise _refused(left, self._text, "`is` asks whether something is missing: reward is None")
        name = _column(left)
        there = pc.field(name).is_valid()
        if pa.types.is_floating(self._schema.field(name).type):
            there = there & ~pc.coalesce(pc.is_nan(pc.field(name)), pa.scalar(False))
        return there if isinstance(op, ast.IsNot) else ~there

    def _among(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> pc.Expression:
        values = _values(right, self._text)
        if not _is_column(left):
            raise _refused(left, self._text, "`in` names a column: step in (0, 1, 2)")
        name = _column(left)
        kind = self._kind(name)
        if any(_kind_of_value(value) != kind for value in values):
            raise _refused(right, self._text, f"{name} is {kind}, and not all of these are")
        field = pc.field(name)
        said = self._schema.field(name).type
        if kind == "a number":
            said = pa.float64() if any(isinstance(v, float) for v in values) else _number_type(said)
            field = field.cast(said)
        inside = field.isin(pa.array(values, said))
        found = pc.if_else(pc.field(name).is_valid(), inside, _UNKNOWN)
        found = self._unless_nan(left, found)
        return found if isinstance(op, ast.In) else ~found

    def _unless_nan(self, side: ast.expr, found: pc.Expression) -> pc.Expression:
        if _is_column(side) and pa.types.is_floating(self._schema.field(_column(side)).type):
            return pc.if_else(pc.is_nan(pc.field(_column(side))), _UNKNOWN, found)
        return found

    def _operand(self, node: ast.expr) -> Any:
        if not _is_column(node):
            return pc.scalar(_constant(node, self._text))
        field, kind = pc.field(_column(node)), self._schema.field(_column(node)).type
        return field.cast(_number_type(kind)) if self._kind(_column(node)) == "a number" else field

    def _shown(self, node: ast.expr) -> str:
        return _column(node) if _is_column(node) else repr(_constant(node, self._text))

    def _kind_of(self, node: ast.expr) -> str | None:
        if _is_column(node):
            return self._kind(_column(node))
        return _kind_of_value(_constant(node, self._text))

    def _kind(self, name: str) -> str:
        kind = self._schema.field(name).type
        if pa.types.is_boolean(kind):
            return "truth"
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return "a number"
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return "text"
        raise ConfigError(
            f"column {name!r} has {kind} for each sample, which cannot be compared",
            where=f"where: {visible(self._text)}",
            hint="compare columns with one number, one text or true and false for each sample",
        )


def _number_type(kind: pa.DataType) -> pa.DataType:
    """One of two types for all numbers, so that any two can be compared."""
    return pa.float64() if pa.types.is_floating(kind) or kind == pa.uint64() else pa.int64()


def _kind_of_value(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "truth"
    return "text" if isinstance(value, str) else "a number"
