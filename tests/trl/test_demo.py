"""`rolltape demo` is honest: what it says happened did happen, and its advice works."""

from __future__ import annotations

import re
import shlex

import pytest

import rolltape
from rolltape.demo import runs as acts
from rolltape.examples.grpo import loss, task
from tests.cli_tapes import run

STEPS = 12


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "with space"
    done = run("demo", "--dir", folder, "--steps", STEPS)
    assert done.exit_code == 0, done.stderr
    return folder, done.stdout


def test_it_learns(shown):
    before, after = map(float, re.search(r"reward (\d\.\d\d) → (\d\.\d\d)", shown[1]).groups())
    assert after > before + 0.05


def test_it_fits_a_screen_or_two(shown):
    """Weights and an optimizer are hundreds of columns: a row says the worst of them."""
    assert len(shown[1].splitlines()) < 80
    for verdict in ("tolerance", "diverged"):
        assert re.search(rf"^  state +\d+ columns +{verdict} ", shown[1], re.MULTILINE), verdict
    assert "cannot be" not in shown[1]


def test_it_shows_words(shown):
    said = re.findall(r"the best answer of step (\d+): (\w+): (.+)", shown[1])
    assert [int(step) for step, _, _ in said] == [0, STEPS - 1]
    assert all({asked, *answer.split()} <= {*task.WORDS, ":"} for _, asked, answer in said)


def test_the_replay_is_identical(shown):
    recorded, replayed = re.search(r"weights (\w+) recorded, (\w+) replayed", shown[1]).groups()
    assert recorded == replayed
    assert "DIFFERENT" not in shown[1]


def test_packing_is_rounding(shown):
    assert "rounding   nothing beyond" in shown[1]
    packed = run("diff", shown[0] / "base", shown[0] / "packed")
    assert packed.exit_code == 0, packed.stdout


def test_the_bug_is_found_where_it_is(shown):
    assert "First divergence: step 0, stage `loss`, `log_probs`, sample 0 (uid 0.0, 0), token 0" in shown[1]
    assert "shifted by one" in shown[1]
    assert loss.response_mask.__name__ == "response_mask", "the bug is gone after the act"


def test_the_page_says_the_same(shown):
    page = (shown[0] / "demo.html").read_text()
    weights = re.search(r"weights (\w+) recorded", shown[1])[1]
    assert page.count(weights) == 2
    assert "First divergence: step 0, stage `loss`" in page
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page), "nothing comes from a network"


def test_its_advice_works(shown):
    advice = [line for line in shown[1].splitlines() if line.startswith("  rolltape ")]
    assert [shlex.split(line)[1] for line in advice] == ["ls", "show", "diff", "view"]
    for line, code in zip(advice, (0, 0, 1), strict=False):
        done = run(*shlex.split(line)[1:])
        assert done.exit_code == code, done.stderr
    assert rolltape.open(shlex.split(advice[-1])[-1]).steps()  # as the viewer would show them


def test_a_demo_that_is_there_is_not_overwritten(shown):
    done = run("demo", "--dir", shown[0])
    assert done.exit_code == 2
    assert "there is a demo here already" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_difference_is_never_called_identical(tmp_path, monkeypatch):
    replay = acts.Story.replay

    def other(story, on_step):
        monkeypatch.setattr(loss, "advantages", lambda rewards, groups: real(rewards, groups) * 1.001)
        return replay(story, on_step)

    real = loss.advantages
    monkeypatch.setattr(acts.Story, "replay", other)
    done = run("demo", "--dir", tmp_path / "t", "--steps", 4)
    assert done.exit_code == 1
    assert "DIFFERENT   weights" in done.stdout


def test_the_lines_that_are_shown_are_those_of_the_code():
    import inspect

    assert f"return {acts.RIGHT}" in inspect.getsource(loss.response_mask)
    assert f"return {acts.WRONG}" in inspect.getsource(acts.shifted_mask)
