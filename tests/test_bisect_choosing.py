"""What a search tries next: as few replays as there can be, whatever cannot be built."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.bisecting.choosing import Candidate, choose, runs_left
from rolltape.bisecting.differences import between, file_differences, given_words
from rolltape.bisecting.minimizing import minimize
from rolltape.errors import ConfigError


def line(count: int) -> list[Candidate]:
    """Candidates 1 … count in a row, the last first."""
    return [Candidate(str(at), (str(at - 1),)) for at in range(count, 0, -1)]


def search(history: list[Candidate], bad: set[str], broken: set[str]) -> tuple[list[str], int]:
    """What is left at the end, and how many answers that took. ``bad`` are the candidates that diverge."""
    answers, skipped = 0, set()
    while (name := choose(history, skipped)) is not None:
        assert name not in skipped
        assert name != history[0].id
        if name in broken:
            skipped.add(name)
            continue
        answers += 1
        behind = ancestors(history, name)
        history = [one for one in history if (one.id in behind) == (name in bad)]
    return [one.id for one in history], answers


def ancestors(history: list[Candidate], name: str) -> set[str]:
    found = {name}
    for one in history:  # children come before their parents
        if one.id in found:
            found.update(one.parents)
    return found


@given(st.integers(2, 200), st.data())
def test_a_line_takes_no_more_answers_than_there_must_be(count: int, data: st.DataObject) -> None:
    fault = data.draw(st.integers(1, count))
    broken = {str(at) for at in data.draw(st.sets(st.integers(1, count - 1)))}
    left, answers = search(line(count), {str(at) for at in range(fault, count + 1)}, broken)
    assert answers <= runs_left(count)
    first = next(at for at in range(fault, count + 1) if str(at) not in broken)
    assert left[0] == str(first), "the first that can be built and diverges"
    assert str(fault) in left
    assert set(left[1:]) <= broken


@pytest.mark.parametrize("block", [1, 3, 9, 20, 40])
def test_sixty_four_commits_take_six_answers_wherever_a_block_does_not_build(block: int) -> None:
    for begin in range(1, 64 - block, 3):
        broken = {str(at) for at in range(begin, begin + block)}
        for fault in range(1, 64):
            bad = {str(at) for at in range(fault, 64)}
            assert search(line(63), bad, broken)[1] <= 6


def test_a_block_that_does_not_build_is_left_quickly_where_that_costs_nothing() -> None:
    tried: set[str] = set()
    broken = {str(at) for at in range(12, 29)}
    while (name := choose(line(40), tried)) in broken:
        tried.add(name)
    assert len(tried) < 6, "seventeen in a row, and not one after the other"


@given(st.integers(2, 60), st.integers(0, 2**32))
def test_the_first_of_any_history_is_found(count: int, seed: int) -> None:
    draw = random.Random(seed)
    history = [Candidate("0", ("-1",))]
    for at in range(1, count):
        parents = draw.sample(range(at), min(at, draw.choice([1, 1, 1, 2, 3])))
        history.append(Candidate(str(at), tuple(map(str, parents))))
    history = [
        one for one in reversed(history) if one.id in ancestors(list(reversed(history)), history[-1].id)
    ]
    fault = draw.choice(history).id
    bad = {one.id for one in history if fault in ancestors(history, one.id)}
    assert search(history, bad, set())[0] == [fault]


def test_a_long_history_is_looked_through_in_no_time() -> None:
    assert choose(line(20_000)) == "10000"


# -- flags -------------------------------------------------------------------------------------------------


@given(st.integers(1, 16), st.data())
def test_a_smallest_set_is_found(count: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, min(count, 3)))
    cause = set(data.draw(st.permutations(range(count)))[:size])
    asked: list[tuple[int, ...]] = []

    def diverges(some: tuple[int, ...], left: int) -> bool:
        assert left >= 0
        asked.append(some)
        return cause <= set(some)

    assert set(minimize(range(count), diverges)) == cause
    assert len(asked) <= count * count + 4 * count


def test_one_that_is_enough_is_better_than_two_that_are_needed_together() -> None:
    found = minimize(range(12), lambda some, left: {4, 9} <= set(some) or 7 in some)
    assert found == (7,)


@given(st.integers(0, 2**32))
def test_what_crashes_proves_nothing(seed: int) -> None:
    """3 and 8 together diverge, and all that has 3 and lacks 5 crashes: 5 is found with them."""
    order = random.Random(seed).sample(range(10), 10)
    found = minimize(order, lambda some, left: {3, 5, 8} <= set(some))
    assert set(found) == {3, 5, 8}


def test_differences_of_configurations() -> None:
    before = {"a": {"b": 1, "c": [1, {"d": 2}], "e.f": True}, "g": None, "h": [1], "i": 1, 7: "x"}
    after = {"a": {"b": 1.0, "c": [1, {"d": 3}], "e.f": 1}, "g": "", "h": [1, 2], "j": {"k": 1}, 7: "y"}
    found = file_differences(before, after)
    assert [str(one) for one in found] == [
        "a.b: 1 -> 1.0", "a.c.1.d: 2 -> 3", 'a."e.f": true -> 1', "g: null -> ''", "h: [1] -> [1, 2]",
        "i: 1 -> (not set)", "7: 'x' -> 'y'", "j: (not set) -> {\"k\": 1}",
    ]  # fmt: skip
    assert between(before, []) == before
    assert between(before, found) == after
    assert type(between(before, found)["a"]["b"]) is float
    assert [one.override for one in found[-3:]] == ["~i", "7=y", '+j={"k": 1}']
    assert [one.name for one in file_differences(before, after, places=False)][1] == "a.c"


CONFIGS = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=2), CONFIGS), st.dictionaries(st.text(max_size=2), CONFIGS))
def test_all_differences_together_make_the_other_configuration(before: dict, after: dict) -> None:
    found = file_differences(before, after)
    assert not file_differences(between(before, found), after)
    for one in found:
        assert len(file_differences(between(before, [one]), after)) == len(found) - 1


def test_a_word_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        given_words(["lr=1", "kl=2", "lr=1"])
