"""A batch of very many columns takes time in proportion, and beyond a limit it is refused by name.

Work is counted, not timed: how many guesses the planner of layouts tries, into how many pieces a file is cut.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rolltape.batch import columns, dismantle, tree
from rolltape.codec import file as file_module
from rolltape.codec import layout, validation
from rolltape.codec.layout import Planner
from rolltape.codec.pack import pack
from rolltape.errors import CorruptFileError, UnsupportedValueError
from tests.exact import assert_same, open_bytes, to_bytes

COUNT = 400
WIDE: dict[str, Any] = {
    "equal arrays": {f"c{n}": np.zeros((3, 4)) for n in range(COUNT)},
    "other arrays of one width": {f"c{n}": np.full((3, 4), n + 1) for n in range(COUNT)},
    "arrays of two widths": {f"c{n}": np.full((3, 1 + n % 2), n + 1) for n in range(COUNT)},
    "arrays that begin alike": {f"c{n}": np.array([[1, n, 2]] * 3) for n in range(COUNT)},
    "arrays of many widths": {f"c{n}": np.arange(3 * (1 + n % 60)).reshape(3, -1) for n in range(COUNT)},
    "arrays padded each in its own way": {
        f"c{n}": np.where(np.random.default_rng(n).random((3, 16)) < 0.5, 0, n + 5) for n in range(COUNT)
    },
}


@pytest.mark.parametrize("kind", WIDE)
def test_what_is_tried_grows_with_the_columns_and_not_with_their_square(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0
    compare = Planner._same

    def counted(*args: Any) -> bool:
        nonlocal tried
        tried += 1
        return compare(*args)

    monkeypatch.setattr(Planner, "_same", counted)
    monkeypatch.setattr(layout, "TRIES", 10 * COUNT)
    data = to_bytes(WIDE[kind])
    assert tried <= 10 * COUNT
    assert_same(open_bytes(data).value(), WIDE[kind])


def test_what_can_be_derived_is_found_among_many() -> None:
    """Few guesses, and still the right ones: equal columns, slices and joins are not stored."""
    rng = np.random.default_rng(0)
    value = {f"other{n}": rng.integers(1, 9, (5, 7)) for n in range(300)}
    value |= {"prompts": rng.integers(1, 99, (5, 8)), "responses": rng.integers(1, 99, (5, 6))}
    value |= {"input_ids": np.concatenate([value["prompts"], value["responses"]], 1)}
    value |= {"again": value["prompts"].copy(), "end": value["responses"][:, 2:].copy()}
    stored = open_bytes(to_bytes(value)).stored_columns
    assert stored["input_ids"].of == ("prompts", "responses")
    assert (stored["again"].layout, stored["again"].of) == ("part", ("prompts",))
    assert (stored["end"].layout, stored["end"].offset) == ("part", 2)


def test_names_that_become_the_same_are_counted_once() -> None:
    claimed: list[str] = []

    class Taken(dict):  # type: ignore[type-arg]
        def __contains__(self, name: object) -> bool:
            claimed.append(str(name))
            return super().__contains__(name)

    parts = tree.Dismantled(1, None, _taken=Taken())
    names = [parts.claim("a/2"), *(parts.claim("a") for _ in range(500))]
    assert len(set(names)) == 501
    assert names[:3] == ["a/2", "a", "a/3"]
    assert len(claimed) < 1100


def test_more_columns_than_a_recording_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_COLUMNS", 100)
    assert dismantle({f"c{n}": [1, 2] for n in range(100)}).columns
    for value in (
        {f"c{n}": [1, 2] for n in range(101)},
        {f"c{n}": np.arange(n) for n in range(101)},
        {"x": [[np.arange(2)] * 3] * 40, "input_ids": np.zeros((2, 3))},
    ):
        with pytest.raises(UnsupportedValueError, match="more than 100 columns"):
            dismantle(value)


def test_a_file_of_more_columns_is_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = to_bytes({f"c{n}": [1, 2] for n in range(300)})
    monkeypatch.setattr(validation, "MAX_COLUMNS", 100)
    with pytest.raises(CorruptFileError, match="has 302 columns"):
        open_bytes(data)
    arrays = to_bytes({"input_ids": np.zeros((2, 3)), **{f"c{n}": np.arange(3) for n in range(300)}})
    with pytest.raises(CorruptFileError, match="has 301 columns"):
        open_bytes(arrays).value()
    assert columns.MAX_COLUMNS == 65_536


@pytest.mark.parametrize("rows", [1, 3])
def test_records_of_more_fields_than_columns_are_kept_as_they_are(rows: int) -> None:
    wide = {f"f{n}": n for n in range(tree.MAX_RECORD_COLUMNS + 1)}
    value = [{"a": n, "wide": wide, "deep": {"x": {"y": [n]}}} for n in range(rows)]
    file = open_bytes(to_bytes(value))
    assert len(file.stored_columns) < 10
    assert_same(file.value(), value)


def test_records_in_records_fill_the_room_once() -> None:
    value: Any = 1
    for _ in range(5):
        value = {f"k{n}": value for n in range(8)}
    file = open_bytes(to_bytes([value] * 2))
    assert len(file.stored_columns) <= 2 * tree.MAX_RECORD_COLUMNS
    assert_same(file.value(), [value] * 2)


@pytest.mark.parametrize(("columns", "samples"), [(1, 1000), (40, 300), (200, 600), (2, 0)])
def test_a_file_is_cut_into_a_bounded_number_of_pieces(
    columns: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_module, "ROWS_PER_GROUP", 4)
    monkeypatch.setattr(file_module, "MOST_CHUNKS", 1000)
    value = {f"c{n}": list(range(samples)) for n in range(columns)}
    data = to_bytes(value)
    found = pq.read_metadata(io.BytesIO(data))
    assert found.num_row_groups * found.num_columns <= 1000 + found.num_columns
    assert_same(open_bytes(data).value(), value)


def test_row_bounds_that_are_the_same_but_for_a_shift_are_stored_once() -> None:
    rows = np.zeros((4, 30), np.int64)
    value = {}
    for shift in range(12):
        shifted = rows.copy()
        for row in range(4):
            shifted[row, shift : shift + 3 + row] = 7 + shift + np.arange(3 + row)
        value[f"c{shift}"] = shifted
    packed = pack(dismantle(value))
    assert len([name for name in packed.stored if name.startswith("_bound")]) <= 2
    assert_same(open_bytes(to_bytes(value)).value(), value)
