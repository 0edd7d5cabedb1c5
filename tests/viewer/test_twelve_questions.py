"""Twelve questions about a run, each answered in at most three clicks from the table of runs.

The table of docs/viewer-questions.md says how, and what other viewers answer of them.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

import rolltape
from rolltape.sample_notes import Marked, Notes
from rolltape.viewer.library import Library
from tests.viewer.serving import serve, settled

STEPS = (0, 100, 200, 300, 400, 500)
MOST_CLICKS = 3
SIZE = 4
"""Samples of a prompt."""

# By prompt, the reward of its samples at each step.
REWARDS = {
    "What is 2 + 2?": (0, 0, 0, 1, 1, 1),
    "Is 7919 a prime?": (0, 0, 0, 0, 0, 0),
    "Name a river.": (1, 1, 1, 1, 0, 0),
    "Say why.": (1, 1, 1, 1, 1, 1),
}


def said(prompt, step, index):
    """The response of a sample: words, and more of them with every step where that earns nothing."""
    if prompt == "Say why.":
        return " ".join(["because"] * (2 + step // 25 + index))
    return f"at {step} I say {'four' if step >= 300 else 'five'} to sample {index}"


def rollout(step):
    asked = [(prompt, index) for prompt in REWARDS for index in range(SIZE)]
    texts = [said(prompt, step, index) for prompt, index in asked]
    lengths = [len(text.split()) for text in texts]
    return {
        "uid": [f"p{list(REWARDS).index(prompt)}" for prompt, _ in asked],
        "index": [index for _, index in asked],
        "prompt": [prompt for prompt, _ in asked],
        "response": texts,
        "response_ids": [np.arange(size) + 100 for size in lengths],
        "logprobs": [np.full(size, -0.5, np.float32) for size in lengths],
        "finish_reason": ["length" if size > 12 else "stop" for size in lengths],
    }


def rewards(step):
    values = [REWARDS[prompt][STEPS.index(step)] for prompt in REWARDS for _ in range(SIZE)]
    batch = rollout(step)
    return {"uid": batch["uid"], "index": batch["index"], "reward": np.array(values, np.float32)}


def trained(step, off):
    """The trainer's log-probs: those of the engine, but for one token of one sample; and a bug."""
    batch = rollout(step)
    found = [row.copy() for row in batch["logprobs"]]
    if step == 200:
        found[6][2] -= 2.0
    if step >= 300:
        found[9][1] += off
    return {"uid": batch["uid"], "index": batch["index"], "log_probs": found}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Two runs of the same rollouts: the second has another learning rate, and a bug from step 300 on."""
    folder = tmp_path_factory.mktemp("questions")
    for name, rate, off in (("base", 1e-3, 0.0), ("bug", 2e-3, 0.25)):
        settings = {"learning_rate": rate, "model": "tiny"}
        with rolltape.Tape(folder / name, mode="record", background=False, fingerprint=settings) as tape:
            stages = [
                tape.stage(stage)(make)
                for stage, make in (("rollout", rollout), ("reward", rewards), ("loss", lambda at: trained(at, off)))  # noqa: E501, B023
            ]  # fmt: skip
            for step in STEPS:
                with tape.step(step):
                    for stage in stages:
                        stage(step)
                    tape.log({"reward": float(rewards(step)["reward"].mean())})
    Notes(rolltape.open(folder / "base")).write(Marked("train", "rollout", 400, "p2", 1), "why so?", ["odd"])
    with serve(Library([str(folder / "base"), str(folder / "bug")])) as found:
        yield found


class Clicks:
    """Clicks on a page, and fails at the first that is one too many."""

    def __init__(self, page):
        self.page = page
        self.made = 0

    def __call__(self, place):
        """On what leads to another page."""
        before = self.page.url
        self.unfold(place)
        self.page.wait_for_url(lambda url: url != before)
        settled(self.page)

    def unfold(self, place):
        """On what shows more of this one."""
        self.made += 1
        assert self.made <= MOST_CLICKS
        place.click()

    def link(self, text):
        self(self.page.locator("main a", has_text=re.compile(text)).first)


@pytest.fixture
def click(watched, address):
    page = watched(base_url=address).page
    page.goto("/")
    settled(page)
    return Clicks(page)


@pytest.fixture
def run(click):
    """On the page of the run, after the first click."""
    click(click.page.locator("#runs a.open", has_text="base"))
    return click


def drawn(page, title):
    """What is drawn in a plot: the values of its first curve, by step."""
    figure = page.locator("figure", has=page.locator("figcaption", has_text=re.compile(title))).first
    data = json.loads(figure.locator("script").text_content())
    return dict(zip(data["steps"], data["lines"][0]["values"], strict=True))


def prompts(page):
    return page.locator("#prompts td.prompt").all_inner_texts()


def visits(page):
    """What the best sample said at each step, on the page of a prompt, in the first run."""
    rows = page.locator(".visits").first.locator("tbody tr")
    return {
        int(row.locator("td").first.inner_text()): row.locator("td").nth(5).inner_text() for row in rows.all()
    }


def test_where_did_the_reward_jump_and_what_do_samples_before_and_after_look_like(run):
    curve = drawn(run.page, "^reward$")
    after = max(STEPS[1:], key=lambda step: curve[step] - curve[STEPS[STEPS.index(step) - 1]])
    assert after == 300
    run.link("^prompts$")
    run.link(re.escape("What is 2 + 2?"))
    told = visits(run.page)
    assert "I say five" in told[200]
    assert "I say four" in told[300]


def test_which_prompts_never_improve(run):
    run.link("^prompts$")
    run.link("^never improve")
    assert prompts(run.page) == ["Is 7919 a prime?", "Name a river."]


def test_which_prompts_got_worse(run):
    run.link("^prompts$")
    run.link("^got worse")
    assert prompts(run.page) == ["Name a river."]


def test_where_do_two_runs_part_and_by_how_much(run):
    run.link("^compare with bug")
    expect(run.page.locator("#answer > b")).to_have_text("diverged")
    expect(run.page.locator("#answer")).to_contain_text("step 300, stage loss, log_probs")
    row = run.page.locator("#links tbody tr", has_text="loss/log_probs")
    expect(row.locator("td").nth(2)).to_have_text("0.25")


def test_which_samples_carry_the_error(run):
    run.link("^compare with bug")
    run(run.page.locator("#links a", has_text="samples").first)
    expect(run.page.locator("#found tbody tr td:first-child")).to_have_text(["300", "400", "500"])
    expect(run.page.locator("#found a.open")).to_have_text(["p2 #1"] * 3)


def test_is_length_hacking_going_on(run):
    """Answers get longer, and no better: the rewards of the longest say so too."""
    lengths = drawn(run.page, "^response length")
    assert lengths[500] > 1.5 * lengths[0]
    run.link("^search samples")
    run.link("^response$")
    expect(run.page.locator("#found th[aria-sort=descending]")).to_have_text("response")
    tokens = [int(text) for text in run.page.locator("#found td:nth-child(5)").all_inner_texts()]
    assert tokens == sorted(tokens, reverse=True)
    assert run.page.locator("#found td.prompt").first.inner_text().count("because") == tokens[0] == 25
    assert set(run.page.locator("#found td:nth-child(1)").all_inner_texts()[:SIZE]) == {"500"}


def test_which_answers_are_truncated(run):
    run.link("^search samples")
    run.link("^truncated$")
    cut = [(step, text) for step in STEPS for text in rollout(step)["response"] if len(text.split()) > 12]
    expect(run.page.locator("#found tbody tr")).to_have_count(len(cut))
    assert set(run.page.locator("#found td:nth-child(6)").all_inner_texts()) == {"length"}


def test_where_do_trainer_and_engine_disagree_most(run):
    run.link("^how far, why, and where")
    worst = run.page.locator("section.worst").first
    expect(worst).to_contain_text("step 200")
    expect(worst).to_contain_text("p1")
    run.unfold(worst.locator("summary"))
    assert worst.locator("tbody tr").first.locator("td").first.inner_text() == "2"


def test_what_took_the_time(run):
    figure = run.page.locator("figure", has_text="seconds by stage").first
    lines = json.loads(figure.locator("script").text_content())["lines"]
    assert [line["name"] for line in lines] == ["rollout", "reward", "loss"]


def test_what_differs_in_the_configuration_of_two_runs(run):
    run.link("^compare with bug")
    changes = run.page.locator("details", has_text="configuration: 1 difference")
    expect(changes).to_contain_text("learning_rate")
    expect(changes).to_contain_text("0.001 → 0.002")


def test_what_did_the_policy_say_to_this_prompt_at_steps_0_100_and_500(run):
    run.link("^prompts$")
    run.link(re.escape("What is 2 + 2?"))
    told = visits(run.page)
    for step in (0, 100, 500):
        assert any(said("What is 2 + 2?", step, index) in told[step] for index in range(SIZE))


def test_which_samples_did_i_mark_last_week(click):
    click(click.page.locator("#runs a.pill", has_text="odd"))
    row = click.page.locator("#notes tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("why so?")
    assert re.search(r"\d{4}-\d\d-\d\d", row.locator("td").last.inner_text())
    click(row.locator("a.open"))
    expect(click.page.locator("#response")).to_contain_text(said("Name a river.", 400, 1))


def test_the_docs_have_all_of_them():
    """As many rows as there are tests here, each with its clicks."""
    text = (Path(__file__).parents[2] / "docs" / "viewer-questions.md").read_text("utf-8")
    rows = re.findall(r"^\| \d+\. .*$", text, re.M)
    tests = [
        name for name in globals() if name.startswith("test_") and name != "test_the_docs_have_all_of_them"
    ]
    assert len(rows) == len(tests) == 12
