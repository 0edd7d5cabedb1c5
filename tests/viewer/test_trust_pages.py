"""The pages about trust: a strip of verdicts on the run's page, plots, the worst sequences token by token."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest
from playwright.sync_api import expect

import rolltape
from rolltape.examples.grpo.train import Options, train
from rolltape.steps import ALL_STEPS
from rolltape.trusting.shape import Shape, size_edges
from rolltape.trusting.taking import Sides, take
from rolltape.viewer import export_html
from rolltape.viewer.library import Library
from rolltape.viewer.trusts import Trusts
from tests.viewer.conftest import STEPS
from tests.viewer.serving import serious, serve


@pytest.fixture(scope="module")
def moved(runs, tmp_path_factory):
    """A replay with another learning rate: it leaves the noise after the first step."""
    out = tmp_path_factory.mktemp("moved") / "moved"
    logging.disable(logging.WARNING)
    with rolltape.Tape(runs / "base", mode="replay", out=out) as tape:
        train(Options(steps=STEPS, prompts=5, n=4, max_tokens=6, learning_rate=0.05), tape)
    logging.disable(logging.NOTSET)
    return out


@pytest.fixture(scope="module")
def both(runs, moved):
    with serve(Library([str(runs / "base"), str(moved)])) as address:
        yield address


def told(one, address):
    """A page whose parts have all come."""
    one.page.goto(address)
    expect(one.page.locator("[data-part]:not([data-done]), [data-series]:not([data-done])")).to_have_count(0)
    return one.page


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_the_run_has_a_strip_and_the_page_says_what_the_command_says(watched, both, moved, scheme, width):
    found = rolltape.trust(moved)
    one = watched(base_url=both, width=width, color_scheme=scheme)
    page = told(one, "/t/1")
    strip = page.locator("section.trust .strip")
    expect(strip.locator(".count")).to_have_text(str(found.verdict))
    widths = {
        name: sum(float(w) for w in page.locator(f"rect.trust-{name}").evaluate_all(
            "all => all.map((one) => one.getAttribute('width'))"))
        for name in ("exact", "within-noise", "correctable", "plumbing-only", "cannot-tell")
    }  # fmt: skip
    assert widths == {
        name: float(sum(str(step.verdict).replace(" ", "-") == name for step in found.steps))
        for name in widths
    }
    page.locator("section.trust a").click()
    expect(page.locator("#answer b")).to_have_text(str(found.verdict))
    expect(page.locator("#answer")).to_contain_text(f"Step {found.left_at} is the first")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    shown = page.locator("#figures tr", has_text="χ²").locator("td").all_inner_texts()
    assert shown[1].startswith(f"{found.tokens.estimates['chi2'].value:.3g}")
    assert serious(page) == {}


def test_every_bar_and_token_is_what_is_on_the_tapes(watched, both, runs, moved):
    page = told(watched(base_url=both), "/trust/1/train")
    sides = Sides(rolltape.open(moved), rolltape.open(runs / "base"))
    pairs = [take(sides, step).total for step in range(STEPS)]
    d = np.concatenate([one.log_ratio for one in pairs])
    counts = [
        int(found.group(1).replace(",", ""))
        for said in page.locator("figure.trust-plot").nth(0).locator("rect title").all_text_contents()
        if (found := re.search(r": ([\d,]+) tokens$", said))
    ]
    assert sum(counts) == len(d)
    expected = [int(((d >= low) & (d < high)).sum()) for low, high in size_edges() if low >= 0]
    assert counts[-len(expected) :] == expected[-len(counts) :] or sum(expected) == sum(
        counts[len(counts) // 2 + 1 :]
    )
    step, worst = rolltape.trust(moved).worst_sequences[0]
    expect(page.locator(".worst h3").first).to_have_text(f"step {step}, {worst.name}")
    tokens = page.locator(".worst .tokens").first.locator(".tok")
    at = pairs[step].names.index(worst.name)
    row = pairs[step].row(at)
    assert tokens.all_inner_texts() == [str(one) for one in pairs[step].ids[row]]
    ratios = [
        float(one.rsplit(" ", 1)[1]) for one in tokens.evaluate_all("all => all.map((one) => one.title)")
    ]
    assert ratios == pytest.approx(pairs[step].log_ratio[row], rel=0.01)


def test_it_is_in_a_file_too(watched, runs, moved, tmp_path):
    out = tmp_path / "out.html"
    export_html([str(moved)], str(out), ALL_STEPS)
    page = watched().page
    page.goto(out.as_uri())
    expect(page.locator("section.trust .count")).to_be_visible()
    page.locator("section.trust a").click()
    expect(page.locator("figure.trust-plot")).to_have_count(3)
    expect(page.locator(".worst .tok").first).to_be_visible()


def test_a_run_without_log_probs_says_so(watched, tmp_path):
    with rolltape.Tape(tmp_path / "plain", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"uid": ["a"], "text": ["b"]})()
    with serve(Library([str(tmp_path / "plain")])) as address:
        one = watched(base_url=address)
        expect(told(one, "/t/0").locator("section.trust")).to_be_empty()
        expect(told(one, "/trust/0/train").locator("#trust")).to_contain_text("no log-probs of a trainer")


def test_a_run_that_goes_on_measures_only_what_is_new(tmp_path, monkeypatch):
    from rolltape.trusting import measuring

    asked = []
    real = measuring.take
    monkeypatch.setattr(measuring, "take", lambda sides, step: (asked.append(step), real(sides, step))[1])

    rows = {"uid": ["a", "b"], "response_ids": [[1, 2], [3, 4]], "logprobs": [[-1.0, -2.0]] * 2}

    def play(tape, steps):
        rollout = tape.stage("rollout")(lambda: rows)
        for step in steps:
            with tape.step(step):
                rollout()
                tape.probe("logprobs", np.array(rows["logprobs"]) - 0.01 * step, uid=rows["uid"])

    path = str(tmp_path / "run")
    with rolltape.Tape(path, mode="record") as tape:
        play(tape, [0, 1])
    trusts = Trusts(Library([path]))
    assert len(trusts.wait(0, "train").found.steps) == 2
    with rolltape.Tape(path, mode="auto") as tape:
        play(tape, [2])
    assert len(trusts.wait(0, "train").found.steps) == 3
    assert asked == [0, 1, 2]


def test_shapes_of_steps_join_to_that_of_all(moved, runs):
    sides = Sides(rolltape.open(moved), rolltape.open(runs / "base"))
    pairs = [take(sides, step).total for step in range(STEPS)]
    whole = Shape.of(type(pairs[0]).join(pairs))
    joined = Shape.join([Shape.of(one) for one in pairs])
    assert joined.sizes == whole.sizes
    for ours, theirs in ((joined.places, whole.places), (joined.lengths, whole.lengths)):
        assert [(bar.first, bar.count) for bar in ours] == [(bar.first, bar.count) for bar in theirs]
        assert [bar.rms for bar in ours] == pytest.approx([bar.rms for bar in theirs])
