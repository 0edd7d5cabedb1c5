"""Other people's types: taught with register_adapter, and looked up by name."""

from __future__ import annotations

import collections
import dataclasses
import enum
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import rolltape
from rolltape.batch import dismantle, registry
from rolltape.codec.pack import pack
from tests.exact import assert_roundtrip, open_bytes, roundtrip, to_bytes


@pytest.fixture(autouse=True)
def _fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_by_name", "_by_type", "_classes", "_class_names"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))


class Money:
    def __init__(self, cents: Any) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return type(other) is Money and np.array_equal(self.cents, other.cents)

    __hash__ = None  # type: ignore[assignment]


def teach_money(**names: Any) -> None:
    rolltape.register_adapter(
        Money, to_parts=lambda m: {"cents": m.cents}, from_parts=lambda parts: Money(parts["cents"]), **names
    )


def forget() -> None:
    for known in (registry._by_name, registry._by_type, registry._classes, registry._class_names):
        known.clear()


SAMPLE_PATTERNS: dict[str, Any] = {
    "alone": lambda v: v,
    "in a dict": lambda v: {"a": v},
    "in a list": lambda v: [v, v],
    "in a tuple": lambda v: (v, {"b": [v]}),
    "in an object array": lambda v: np.array([v, None], object),
    "as a column": lambda v: {"uid": ["x", "y"], "money": [v, v]},
}


@pytest.mark.parametrize("place", SAMPLE_PATTERNS)
def test_a_type_of_the_users_own(place: str) -> None:
    value = SAMPLE_PATTERNS[place](Money(5))
    with pytest.raises(rolltape.UnsupportedValueError, match=r"Money"):
        pack(dismantle(value))
    teach_money(name="money")
    back = roundtrip(value)
    assert list(back) == list(value) if place == "in an object array" else back == value


def test_parts_may_be_arrays() -> None:
    teach_money()
    assert roundtrip({"m": Money(np.arange(3)), "n": [Money(np.arange(2.0)), 1]}) == {
        "m": Money(np.arange(3)),
        "n": [Money(np.arange(2.0)), 1],
    }


def test_an_adapter_that_fails_names_the_field() -> None:
    rolltape.register_adapter(Money, to_parts=lambda m: m.missing, from_parts=Money)
    with pytest.raises(
        rolltape.UnsupportedValueError, match=r"cannot store a\.b: .*Money; its adapter .* failed"
    ):
        dismantle({"a": {"b": Money(1)}})


def test_parts_that_cannot_be_stored_name_the_field() -> None:
    rolltape.register_adapter(Money, to_parts=lambda m: {"lock": print}, from_parts=Money)
    with pytest.raises(rolltape.UnsupportedValueError, match=r"cannot store a\.lock"):
        dismantle({"a": Money(1)})


def test_both_functions_or_neither() -> None:
    with pytest.raises(rolltape.StageError, match="both"):
        rolltape.register_adapter(Money, to_parts=lambda m: m)
    with pytest.raises(rolltape.StageError, match="to_parts"):
        rolltape.register_adapter(Money)


class Tagged(np.ndarray):
    """A subclass of an array type can be taught too."""


@dataclasses.dataclass
class Point:
    x: Any
    cache: Any = None


def test_an_adapter_goes_before_our_own_ways() -> None:
    rolltape.register_adapter(Tagged, to_parts=np.asarray, from_parts=lambda a: a.view(Tagged))
    rolltape.register_adapter(Point, to_parts=lambda p: p.x, from_parts=Point)
    tagged = np.arange(3).view(Tagged)
    for value in (tagged, [tagged, tagged], {"a": [Point(1, print), Point(2, print)]}):
        back = roundtrip(value)
        if value is tagged:
            assert type(back) is Tagged
        elif isinstance(value, list):
            assert type(back[1]) is Tagged
        else:
            assert back == {"a": [Point(1), Point(2)]}


def test_adapters_for_types_known_by_name_only() -> None:
    rolltape.register_adapter(
        f"{__name__}.Money", name="m", to_parts=lambda m: m.cents, from_parts=lambda cents: Money(cents)
    )
    assert roundtrip([Money(3)]) == [Money(3)]


def test_an_adapter_unknown_at_reading() -> None:
    teach_money(name="money")
    data = to_bytes({"a": Money(1)})
    forget()
    with pytest.raises(LookupError) as caught:
        open_bytes(data).value()
    assert isinstance(caught.value, rolltape.UnknownAdapterError)
    assert "'money'" in str(caught.value)
    assert "register_adapter(..., name='money'" in str(caught.value)


class Color(enum.Enum):
    RED = 1


class Step(NamedTuple):
    n: int


@pytest.mark.parametrize("value", [Point(1), Color.RED, Step(3), [Point(1), Point(2)]], ids=repr)
def test_a_class_unknown_at_reading(value: Any) -> None:
    data = to_bytes({"a": value})
    forget()
    cls = type(value[0] if isinstance(value, list) else value)
    with pytest.raises(rolltape.UnknownAdapterError) as caught:
        open_bytes(data).value()
    assert f"register_adapter({cls.__qualname__}, name=" in str(caught.value)
    rolltape.register_adapter(cls)
    assert open_bytes(data).value() == {"a": value}


def test_a_class_that_moved_is_found_under_its_old_name() -> None:
    data = to_bytes({"a": Point(1)})
    forget()

    @dataclasses.dataclass
    class Moved:
        x: Any
        cache: Any = None

    rolltape.register_adapter(Moved, name=f"{__name__}.Point")
    assert open_bytes(data).value() == {"a": Moved(1)}
    assert f"{__name__}.Point".encode() in to_bytes({"a": Moved(1)})  # and goes on under it


def test_the_decorator_returns_the_class() -> None:
    @rolltape.register_adapter
    @dataclasses.dataclass
    class Local:
        x: int
        child: Any = None

    assert roundtrip(Local(1, Local(2))) == Local(1, Local(2))


def test_classes_that_changed_are_not_filled_with_something_else() -> None:
    data = to_bytes([Step(1), Color.RED])
    renamed = collections.namedtuple("Step", "other")
    rolltape.register_adapter(renamed, name=f"{__name__}.Step")
    with pytest.raises(rolltape.UnknownAdapterError, match="not the class that was recorded"):
        open_bytes(data).value()
    rolltape.register_adapter(Step)
    rolltape.register_adapter(enum.Enum("Color", "BLUE"), name=f"{__name__}.Color")
    with pytest.raises(rolltape.UnknownAdapterError, match="no member 'RED'"):
        open_bytes(data).value()


def test_visible_classes_include_those_of_closures_and_annotations() -> None:
    def outer() -> Any:
        @dataclasses.dataclass
        class Hidden:
            x: int

        @dataclasses.dataclass
        class Annotated:
            inner: Hidden

        def stage() -> list[Annotated] | None:
            return [Annotated(Hidden(1))]

        stage.__annotations__["return"] = list[Annotated] | None
        return stage, Annotated, Hidden

    stage, annotated, hidden = outer()
    forget()
    registry.register_visible_classes(stage)
    assert {annotated, hidden} <= set(registry._classes.values())


SCRIPT = """
import dataclasses, enum, sys
from typing import Any, NamedTuple
import rolltape

class Finish(enum.Enum):
    STOP = "stop"

@dataclasses.dataclass
class Turn:
    role: str

@dataclasses.dataclass(frozen=True)
class Sample:
    tokens: list
    turns: list[Turn]
    finish: Finish
    extra: Any = None

class Pair(NamedTuple):
    a: int

def main(directory, mode):
    @dataclasses.dataclass
    class Local:
        x: int

    with rolltape.Tape(directory, mode=mode) as tape:
        @tape.stage("rollout")
        def generate() -> list[Sample]:
            assert mode == "record", "replay must not call the stage"
            return [Sample([i], [Turn("user")], Finish.STOP, Local(i)) for i in range(3)] + [Pair(1)]

        with tape.step(0):
            print(generate())

main(*sys.argv[1:])
"""


def test_classes_of_a_script_are_found_on_replay_in_a_fresh_process(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    printed = []
    for mode in ("record", "replay"):
        command = [sys.executable, str(script), str(tmp_path / "tape"), mode]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert "Finish.STOP" in printed[1]


def test_batches_are_checked_before_they_are_written() -> None:
    batch = rolltape.Batch({"a": [1, 2], "b": np.ones(2)}, meta={"k": (1,)})
    assert_roundtrip(batch)
    batch.columns["b"] = np.ones(3)
    with pytest.raises(rolltape.BatchError, match="'b' has 3"):
        dismantle(batch)
