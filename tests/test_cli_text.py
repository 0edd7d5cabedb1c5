"""Text of a tape as it is printed: what a terminal could obey is written out, the rest is untouched."""

import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rolltape
from rolltape.reader.sample_fields import abridged, as_text, to_json
from rolltape.reader.visible import visible
from rolltape.rich_text import shown

ANY = st.text(st.characters() | st.sampled_from("\x1b\x9b\x07\r\n\t\u202e\u2066\u200b\udcff[]:"))


@given(ANY)
def test_nothing_that_acts_is_left(text):
    for char in visible(text):
        assert unicodedata.category(char) not in ("Cc", "Cs", "Co", "Cn", "Zl", "Zp")
        assert unicodedata.category(char) != "Cf" or char in "\u200c\u200d"
    visible(text).encode()


@given(ANY)
def test_lines_and_tabs_are_kept_where_asked_for(text):
    assert visible(text, "\n\t").count("\n") == text.count("\n")
    assert visible(text, "\n\t").count("\t") == text.count("\t")
    assert visible(text).count("\n") == 0


@given(st.text("abc ÄöП日🙂[]\\:/"))
def test_ordinary_text_is_untouched(text):
    assert visible(text) == text
    assert shown(text).plain == text


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("\x1b[31m", r"\x1b[31m"),
        ("a\u202eb", r"a\u202eb"),
        ("\U000e0041", r"\U000e0041"),
        ("a\r\n", r"a\r\n"),
        ("\udc80", r"\udc80"),
        ("a\u00a0b\u3000c", "a\u00a0b\u3000c"),
        ("👩\u200d🚀", "👩\u200d🚀"),
    ],
)
def test_how_it_is_written_out(text, safe):
    assert visible(text) == safe


def test_markup_is_text():
    assert shown("[red]x[/red] :smile:").plain == "[red]x[/red] :smile:"
    assert shown("[red]x[/red]").spans == []


@given(st.text("ab\n", max_size=5000))
def test_abridged_text_is_short_and_keeps_both_ends(text):
    short = abridged(text)
    assert len(short) < 700
    if short != text:
        assert text.startswith(re.split("⋯", short)[0].rstrip("\n ")[:5])
        assert "⋯" in short


@given(st.lists(st.integers(0, 2), max_size=60))
def test_runs_say_every_number(values):
    text = as_text(np.array(values, np.int64), full=True)
    again = []
    for item in text.split(", ") if values else []:
        number, _, times = item.partition(" ×")
        again += [int(number)] * int(times or 1)
    assert again == values


def test_cells_of_every_kind_of_column(tmp_path):
    value = {
        "uid": ["a", "b", "c"],
        "dense": np.arange(9).reshape(3, 3),
        "ragged": [[0, 1], [], [2, 3, 4]],
        "object": ["x", None, {"y": 1}],
        "number": np.array([1.5, 2.5, 3.5]),
    }
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: value)()
    rows = rolltape.open(tmp_path / "t").samples(0)
    assert [row["dense"].tolist() for row in rows] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert [row["ragged"].tolist() for row in rows] == [[0, 1], [], [2, 3, 4]]
    assert [row["object"] for row in rows] == ["x", None, {"y": 1}]
    assert [as_text(row["number"]) for row in rows] == ["1.5", "2.5", "3.5"]


@pytest.mark.parametrize(
    ("number", "text"), [(np.float32(0.1), "0.1"), (np.float64(1), "1"), (np.int8(-3), "-3")]
)
def test_a_number_is_shown_without_its_type(number, text):
    assert (as_text(number), as_text([number])) == (text, f"[{number.item()}]")


def test_json_of_values_that_json_lacks():
    assert to_json({1: (b"x", np.int64(3), {"a": np.array([1.5])})}) == {"1": ["b'x'", 3, {"a": [1.5]}]}
