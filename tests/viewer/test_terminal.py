"""``rolltape browse``: steps, groups and samples in a terminal."""

import pytest
from rich.text import Text
from textual.widgets import DataTable

import rolltape
from rolltape.cli.app import app as cli
from rolltape.reader.visible import visible
from rolltape.viewer.library import Library
from rolltape.viewer.sample_view import read_sample
from rolltape.viewer.step_view import StepView
from rolltape.viewer.terminal import Browser, bars, sample_text, token_text
from rolltape.viewer.token_view import Scale, Token
from tests.viewer.payloads import PAYLOADS


def said(app):
    return str(app.screen.query_one("#sample").render())


async def test_steps_lead_to_groups_and_groups_to_samples(runs, truth):
    app = Browser(Library([str(runs / "base")]), "train", None)
    async with app.run_test(size=(120, 40)) as pilot:
        table = app.screen.query_one(DataTable)
        assert table.row_count == 4
        await pilot.press("j", "enter")
        await pilot.pause()
        table = app.screen.query_one(DataTable)
        rollout = truth[1]["rollout"]
        assert [str(table.get_row_at(at)[0]) for at in range(5)] == [
            prompt.text for prompt in rollout.prompts
        ]
        await pilot.press("j", "enter")
        await pilot.pause()
        assert "uid 1.1 #" in said(app)
        assert "coloured by log-prob" in said(app)
        best = said(app)
        await pilot.press("j", "c")
        await pilot.pause()
        assert "coloured by mismatch" in said(app)
        assert said(app) != best
        await pilot.press("n")
        await pilot.pause()
        assert "uid 1.2 #" in said(app)
        await pilot.press("escape", "n")
        await pilot.pause()
        assert str(app.screen.query_one(DataTable).get_row_at(0)[-1]) == "2.0"


def hostile(folder):
    with rolltape.Tape(folder, mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"prompt": list(PAYLOADS), "response": list(PAYLOADS)})()
        tape.log({"\x1b[31mred": 1.0})
    return Library([str(folder)])


def harmless(text):
    controls = {
        char for char in text if (ord(char) < 32 and char not in "\n\t") or ord(char) in range(127, 160)
    }
    return not controls and not {"\u202e", "\u2066", "\u200b", "\ufeff"} & set(text)


def test_no_payload_reaches_the_terminal_as_more_than_text(tmp_path):
    view = StepView(hostile(tmp_path / "t"), 0, "train", "rollout", 0)
    for at, payload in enumerate(PAYLOADS):
        text = sample_text(read_sample(view, at), None).plain
        assert visible(payload, "\n\t") in text
        assert harmless(text)


async def test_what_is_drawn_has_no_escapes_of_a_model(tmp_path):
    app = Browser(hostile(tmp_path / "t"), "train", None)
    async with app.run_test(size=(120, 100)) as pilot:
        for _ in range(3):  # the steps, the groups, a sample
            await pilot.pause()
            drawn = "\n".join(line.text for line in app.screen._compositor.render_strips())
            assert harmless(drawn)
            await pilot.press("enter")


def test_tokens_are_coloured_as_in_a_browser():
    scale = Scale("advantage", "both", [-1.0, 0.0, 1.0])
    text = token_text([Token(1, "a"), Token(2, "b"), Token(3, "c")], scale)
    assert text.plain == "abc"
    grounds = [span.style.bgcolor.name for span in text.spans if getattr(span.style, "bgcolor", None)]
    assert grounds == ["#a8440c", "#195594"]
    assert isinstance(text, Text)
    assert bars([1.0, None, 0.0], 0.0, 1.0) == "█ ▁"


def test_a_tape_without_that_split_is_said_to_have_none(runs, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["browse", str(runs / "base"), "--split", "val"])
    assert left.value.code == 3
    assert "val" in capsys.readouterr().err
