"""A step is a plain non-negative int; a selector is a set of steps that is cheap, exact and readable."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.errors import ConfigError, KeyNameError
from rolltape.steps import ALL_STEPS, MAX_STEP, NO_STEPS, StepSelector, as_step

parse = StepSelector.parse


@pytest.mark.parametrize("value", [0, 7, MAX_STEP, np.int64(7), np.uint8(7), np.array(7)])
def test_an_integer_of_any_kind_is_a_step(value: object) -> None:
    step = as_step(value)
    assert step == value
    assert type(step) is int


@pytest.mark.parametrize(
    "value",
    [-1, MAX_STEP + 1, True, np.True_, np.array(True), 1.0, np.float32(1), "1", None, np.array([1, 2])],
)
def test_anything_else_is_not(value: object) -> None:
    with pytest.raises(KeyNameError, match="whole number"):
        as_step(value)


def test_the_number_is_named_in_the_message() -> None:
    with pytest.raises(KeyNameError, match=r"rank must be .* not -3"):
        as_step(-3, "rank")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0-9,20,50-", "0-9,20,50-"),
        (" 50 - , 5-9 ,0-4, 20 ", "0-9,20,50-"),
        ("5-20,0-10,3", "0-20"),
        ("1,2,3", "1-3"),
        ("007", "7"),
        ("0-", "all"),
        ("ALL", "all"),
        ("5-,0-6", "all"),
        ("", ""),
        ("  ", ""),
        (None, "all"),
        (3, "3"),
        (np.int64(3), "3"),
        ([3, 1, 2, 9], "1-3,9"),
        ({5}, "5"),
        ([], ""),
        (np.array([4, 5, 6]), "4-6"),
        (["0-3", 20], "0-3,20"),
        (range(5), "0-4"),
        (range(0), ""),
        (range(-5, -9), ""),
        (range(4, -1, -1), "0-4"),
        (range(0, 100, 10), "0-90/10"),
        (range(90, -1, -10), "0-90/10"),
        (range(0, 20, 10), "0,10"),
        ("0-99/10,100-199/10", "0-190/10"),
        ("10-30/5,0-100", "0-100"),
        ("0-100/10,0-100/5", "0-100/5"),
        ("3-/10", "3-/10"),
        (parse("1-2"), "1-2"),
    ],
)
def test_the_text_is_canonical(value: object, text: str) -> None:
    selector = parse(value)
    assert str(selector) == text
    assert parse(text) == selector
    assert hash(parse(text)) == hash(selector)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("-5", r"'-5'.*negative"),
        ("0-9,x,3", "'x' in '0-9,x,3'"),
        ("9-0", "'9-0' .*ends before it starts"),
        ("1,,2", "''"),
        ("1-2-3", "'1-2-3'"),
        ("0-9/0", "stride of 0"),
        ("5/2", "'5/2'"),
        ("1.5", r"'1\.5'"),
        ("٣", "'٣'"),
        ("9" * 30, "larger than"),
        ("9" * 9999, "not a step"),
        (-1, "-1"),
        ([1, -2], "-2"),
        ([1, True], "True"),
        ([1.0], r"1\.0"),
        ([[1]], r"\[1\]"),
        (True, "True"),
        (1.5, r"1\.5"),
        (b"12", "bytes"),
        ({0: 9}, "dict"),
        (range(-1, 5), r"range\(-1, 5\) reaches -1"),
        (range(2**64), "reaches"),
    ],
)
def test_bad_input_names_the_piece_and_shows_an_example(value: object, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        parse(value)
    assert "0-9,20,50-" in str(caught.value)


def test_huge_and_open_ranges_are_cheap() -> None:
    selector = parse("0-1000000000000,2000000000000-")
    assert 10**12 in selector
    assert 10**12 + 1 not in selector
    assert 10**15 in selector
    strided = parse(range(0, 10**15, 10))
    assert 10**14 in strided
    assert 10**14 + 1 not in strided


def test_membership_takes_any_integer_and_nothing_else() -> None:
    assert np.int64(3) in parse("0-5")
    assert np.int64(20) in parse(range(0, 100, 10))
    assert all(stranger not in ALL_STEPS for stranger in (-1, True, 1.0, "1", None, MAX_STEP + 1))


def test_only_bounded_selectors_are_listed() -> None:
    assert list(parse("4-5,1")) == [1, 4, 5]
    assert list(parse("0-20/5,10-11,0-12/6")) == [0, 5, 6, 10, 11, 12, 15, 20]
    for text in ("all", "5-", "0-/7"):
        assert not parse(text).bounded
        with pytest.raises(ConfigError, match="has no last step"):
            iter(parse(text))


def test_empty_is_false() -> None:
    assert not NO_STEPS
    assert not parse("")
    assert ALL_STEPS
    assert parse(range(0, 30, 10))


steps = st.integers(0, 200)
ranges = st.builds(range, steps, steps, st.integers(-9, 9).filter(bool))


@given(st.sets(steps))
def test_it_is_a_set_of_ints(numbers: set[int]) -> None:
    selector = parse(numbers)
    assert list(selector) == sorted(numbers)
    assert {step for step in range(201) if step in selector} == numbers
    assert selector == parse(str(selector)) == parse(sorted(numbers, reverse=True))
    assert bool(selector) == bool(numbers)


@given(ranges)
def test_a_range_is_kept_exactly(numbers: range) -> None:
    selector = parse(numbers)
    assert list(selector) == sorted(numbers)
    assert {step for step in range(201) if step in selector} == set(numbers)
    assert selector == parse(str(selector))


@given(st.lists(ranges), st.none() | steps)
def test_a_text_is_the_union_of_its_pieces(parts: list[range], open_from: int | None) -> None:
    pieces = [str(parse(part)) for part in parts if part]
    pieces += [] if open_from is None else [f"{open_from}-"]
    selector = parse(",".join(pieces))
    expected: set[int] = set().union(*parts, range(201 if open_from is None else open_from, 201))
    assert {step for step in range(201) if step in selector} == expected
    assert parse(str(selector)) == selector
    assert selector.bounded == (open_from is None)
    if selector.bounded:
        assert list(selector) == sorted(expected)


@given(st.lists(st.tuples(steps, steps).map(sorted)))
def test_without_strides_equal_sets_are_equal_selectors(bounds: Iterable[tuple[int, int]]) -> None:
    text = ",".join(f"{first}-{last}" for first, last in bounds)
    numbers = {step for first, last in bounds for step in range(first, last + 1)}
    assert parse(text) == parse(numbers)
