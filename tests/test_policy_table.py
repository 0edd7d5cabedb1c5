"""What happens at a step: every cell of the policy table, and the promises that hold for all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import product
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rolltape.errors import ConfigError, KeyNameError, StepExistsError, StepMissingError
from rolltape.policy import Action, Decision, Mode, OnMiss, Overwrite, Policy, decide
from rolltape.steps import ALL_STEPS, StepSelector

# On the tape: 2, 4 and 7 inside steps 0-9, and 11 outside. Asked at 4, 5, 11 and 12.
RECORDED = frozenset({2, 4, 7, 11})
STEPS = StepSelector.parse("0-9")
ASKED = {("in", "recorded"): 4, ("in", "missing"): 5, ("out", "recorded"): 11, ("out", "missing"): 12}

# mode            place   tape        on_miss   overwrite beyond     -> action, source  (* is any, - unset)
TABLE = """
off               *       *           *         *         *          -> live
record            in      recorded    *         error     *          -> error
record            in      recorded    *         keep      *          -> live
record            in      recorded    *         rewrite   *          -> rewrite
record            in      missing     *         *         *          -> record
rewrite           in      recorded    *         *         *          -> rewrite
rewrite           in      missing     *         *         *          -> record
replay,auto       in      recorded    *         *         *          -> replay 4
replay            in      missing     -         *         *          -> error
auto              in      missing     -         *         *          -> record
replay,auto       in      missing     error     *         *          -> error
replay,auto       in      missing     live      *         *          -> live
replay,auto       in      missing     record    *         *          -> record
replay,auto       in      missing     cycle     *         *          -> substitute 2
replay,auto       in      missing     last      *         *          -> substitute 7
replay,auto       in      missing     nearest   *         *          -> substitute 4
*!off             out     *           *         *         live       -> live
*!off             out     *           *         *         error      -> error
*!off             out     missing     *         *         record     -> record
rewrite           out     recorded    *         *         record     -> rewrite
record,replay,auto out    recorded    *         error     record     -> error
record,replay,auto out    recorded    *         keep      record     -> live
record,replay,auto out    recorded    *         rewrite   record     -> rewrite
*!off             out     recorded    *         *         cycle      -> substitute 2
*!off             out     missing     *         *         cycle      -> substitute 4
*!off             out     *           *         *         last       -> substitute 7
*!off             out     *           *         *         nearest    -> substitute 7
"""


class Cell(NamedTuple):
    mode: str
    place: str
    tape: str
    on_miss: str
    overwrite: str
    beyond: str


AXES: list[list[str]] = [
    [str(mode) for mode in Mode],
    ["in", "out"],
    ["recorded", "missing"],
    ["-", *(str(word) for word in OnMiss)],
    [str(word) for word in Overwrite],
    [str(word) for word in OnMiss],
]


def _choices(pattern: str, axis: list[str]) -> list[str]:
    if pattern.startswith("*"):
        return [word for word in axis if f"!{word}" not in pattern]
    return pattern.split(",")


def _table() -> list[tuple[Cell, str, int | None]]:
    cells = []
    for line in TABLE.strip().splitlines():
        patterns, _, result = line.partition("->")
        action, _, source = result.strip().partition(" ")
        for words in product(*map(_choices, patterns.split(), AXES)):
            cells.append((Cell(*words), action, int(source) if source else None))
    return cells


def _decide(cell: Cell) -> Decision:
    policy = Policy(
        mode=Mode(cell.mode),
        on_miss=None if cell.on_miss == "-" else OnMiss(cell.on_miss),
        steps=STEPS,
        beyond=OnMiss(cell.beyond),
        overwrite=Overwrite(cell.overwrite),
    )
    return decide(ASKED[cell.place, cell.tape], RECORDED, policy)


def test_the_table_has_every_cell_once() -> None:
    assert sorted(cell for cell, *_ in _table()) == sorted(product(*AXES))


@pytest.mark.parametrize("mode", [str(mode) for mode in Mode])
def test_every_cell(mode: str) -> None:
    for cell, action, source in _table():
        if cell.mode == mode:
            decision = _decide(cell)
            assert (str(decision.action), decision.source) == (action, source), (cell, decision)
            assert (decision.error is not None) == (action == "error"), cell


def test_errors_say_which_error_and_which_option_helps() -> None:
    exists = decide(4, RECORDED, Policy(Mode.RECORD))
    assert exists.error is StepExistsError
    assert "overwrite=keep" in str(exists.hint)
    missing = decide(5, RECORDED, Policy(Mode.REPLAY))
    assert missing.error is StepMissingError
    assert "set on_miss" in str(missing.hint)
    outside = decide(5, RECORDED, Policy(Mode.AUTO, steps=StepSelector.parse("0-3"), beyond=OnMiss.ERROR))
    assert outside.error is StepMissingError
    assert outside.reason == "step 5 is outside steps 0-3, and `beyond` is error"
    assert "set beyond" in str(outside.hint)


def test_a_kept_recording_is_named_in_the_reason() -> None:
    assert "kept" in decide(4, RECORDED, Policy(Mode.RECORD, overwrite=Overwrite.KEEP)).reason


@pytest.mark.parametrize("word", [OnMiss.CYCLE, OnMiss.LAST, OnMiss.NEAREST])
def test_on_an_empty_tape_a_substitute_is_recorded_first(word: OnMiss) -> None:
    assert decide(5, (), Policy(Mode.REPLAY, on_miss=word)).action is Action.RECORD
    assert decide(12, (), Policy(Mode.AUTO, steps=STEPS, beyond=word)).action is Action.RECORD


@pytest.mark.parametrize(
    ("word", "played"),
    [
        (OnMiss.CYCLE, [4, 4, 2, 4, 2, 4]),
        (OnMiss.LAST, [4, 4, 4, 4, 4, 4]),
        (OnMiss.NEAREST, [2, 2, 2, 4, 4, 4]),
    ],
)
def test_which_step_a_missing_one_plays(word: OnMiss, played: list[int]) -> None:
    policy = Policy(Mode.REPLAY, on_miss=word)
    assert [decide(step, {2, 4}, policy).source for step in (1, 3, 0, 5, 6, 7)] == played


def test_cycle_is_verls_repeat() -> None:
    policy = Policy(Mode.AUTO, steps=StepSelector.parse("1-3"), beyond=OnMiss.CYCLE)
    assert [decide(step, {1, 2, 3}, policy).source for step in range(1, 10)] == [1, 2, 3] * 3


def test_if_only_other_steps_are_recorded_they_are_played() -> None:
    policy = Policy(Mode.AUTO, steps=StepSelector.parse("100-"), on_miss=OnMiss.CYCLE, beyond=OnMiss.LAST)
    assert decide(101, RECORDED, policy).source in RECORDED
    assert decide(5, RECORDED, policy).source == 11
    itself = decide(4, RECORDED, policy)
    assert (itself.action, itself.source) == (Action.REPLAY, 4)


def test_a_long_selection_is_abridged_in_the_reason() -> None:
    policy = Policy(Mode.AUTO, steps=StepSelector.parse([*range(0, 1000, 2)]))
    assert len(decide(1, (), policy).reason) < 200


class Directory(Collection[int]):
    """Recorded steps that count how often they are asked and refuse to be listed."""

    def __init__(self, steps: Collection[int]) -> None:
        self.steps, self.asked = steps, 0

    def __contains__(self, step: object) -> bool:
        self.asked += 1
        return step in self.steps

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the tape was listed")

    def __len__(self) -> int:
        raise AssertionError("the tape was counted")


some_steps = st.sets(st.integers(0, 20))
selectors = st.just(ALL_STEPS) | some_steps.map(StepSelector.parse)


def _policies(words: st.SearchStrategy[OnMiss]) -> st.SearchStrategy[Policy]:
    modes, overwrites = st.sampled_from(list(Mode)), st.sampled_from(list(Overwrite))
    return st.builds(Policy, modes, st.none() | words, selectors, words, overwrites)


policies = _policies(st.sampled_from(list(OnMiss)))
policies_that_never_substitute = _policies(st.sampled_from([OnMiss.ERROR, OnMiss.LIVE, OnMiss.RECORD]))


@given(st.integers(0, 30), some_steps, policies)
def test_every_decision_is_one_thing_and_explained(step: int, recorded: set[int], policy: Policy) -> None:
    decision = decide(step, recorded, policy)
    assert decision.step == step
    assert [decision.calls_live, decision.plays, decision.error is not None].count(True) == 1
    assert decision.calls_live or not decision.saves
    assert decision.plays == (decision.source is not None)
    assert decision.reason
    assert decision == decide(step, frozenset(recorded), policy)


@given(st.integers(0, 30), some_steps, policies)
def test_only_recorded_steps_are_played(step: int, recorded: set[int], policy: Policy) -> None:
    decision = decide(step, recorded, policy)
    if decision.plays:
        assert decision.source in recorded
        assert (decision.source == step) == (decision.action is Action.REPLAY)


@given(st.integers(0, 30), some_steps, policies)
def test_a_recording_is_replaced_only_when_asked(step: int, recorded: set[int], policy: Policy) -> None:
    if decide(step, recorded, policy).saves and step in recorded:
        assert policy.mode is Mode.REWRITE or policy.overwrite is Overwrite.REWRITE


@given(some_steps, policies, st.integers(0, 20))
def test_a_recorded_step_is_replayed_without_live_and_without_listing_the_tape(
    others: set[int], policy: Policy, step: int
) -> None:
    tape = Directory({*others, step})
    assume(step in policy.steps)
    decision = decide(step, tape, policy)
    assert tape.asked == (policy.mode is not Mode.OFF)
    if policy.mode in (Mode.REPLAY, Mode.AUTO):
        assert (decision.action, decision.source, decision.calls_live) == (Action.REPLAY, step, False)


@given(st.integers(0, 30), some_steps, policies_that_never_substitute)
def test_the_tape_is_listed_only_for_a_substitute(step: int, recorded: set[int], policy: Policy) -> None:
    tape = Directory(recorded)
    assert decide(step, tape, policy).action is not Action.SUBSTITUTE
    assert tape.asked <= 1


def test_a_step_is_checked() -> None:
    with pytest.raises(KeyNameError):
        decide(-1, (), Policy(Mode.AUTO))


@pytest.mark.parametrize(
    ("text", "mode"),
    [("dump", Mode.RECORD), ("mock", Mode.REPLAY), ("cache", Mode.AUTO), (" Replay ", Mode.REPLAY)],
)
def test_other_systems_words_are_understood(text: str, mode: Mode) -> None:
    assert Mode.parse(text) is mode
    assert Mode.parse(mode) is mode


def test_off_as_yaml_reads_it() -> None:
    assert Mode.parse(False) is Mode.OFF
    with pytest.raises(ConfigError):
        Overwrite.parse(False)


def test_an_unknown_word_lists_what_exists_and_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"off, record, rewrite, replay, auto.*dump means record") as caught:
        Mode.parse("reply")
    assert "did you mean `replay`?" in str(caught.value)
    with pytest.raises(ConfigError, match="'xyz' is not one of error, live") as caught:
        OnMiss.parse("xyz")
    assert "did you mean" not in str(caught.value)


def test_a_word_is_its_text() -> None:
    assert {"mode": str(Mode.RECORD)} == {"mode": Mode.RECORD}
    assert f"{Mode.RECORD} {OnMiss.LAST!s}" == "record last"
