"""``rolltape view --export``: the same pages in one file, with nothing outside it."""

import re

import pytest
from playwright.sync_api import expect

import rolltape
from rolltape.cli.app import app as cli
from rolltape.steps import ALL_STEPS
from rolltape.viewer import export_html
from tests.viewer.serving import serious


@pytest.fixture(scope="module")
def exported(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "out.html"
    with pytest.raises(SystemExit) as left:
        cli.main(["view", str(runs / "base"), str(runs / "packed"), "--export", str(out), "--steps", "1-2"])
    assert left.value.code == 0
    return out


def test_the_file_is_whole_in_itself(exported):
    text = exported.read_text("utf-8")
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=[\"']?(https?:|//|/)", text)
    assert "script-src 'sha256-" in text
    assert "unsafe" not in text
    assert [path.name for path in exported.parent.iterdir()] == ["out.html"]


def test_its_pages_work_without_a_server(watched, exported, truth):
    page = watched().page
    page.goto(exported.as_uri())
    expect(page.locator("h1")).to_have_text("Runs")
    assert serious(page) == {}
    page.locator("main a", has_text="base").first.click()
    expect(page.locator("nav.crumbs b")).to_have_text("base")
    expect(page.locator("figcaption", has_text="reward").first).to_be_visible()
    page.goto(f"{exported.as_uri()}#/t/0/train/rollout/2")
    expect(page.locator("#groups tbody tr")).to_have_count(5)
    page.locator("#groups a.open").first.click()
    expect(page.locator("#response pre")).to_be_visible()
    best = max(range(4), key=lambda row: (truth[2]["reward"]["reward"][row], -row))
    ids = [str(i) for i in truth[2]["rollout"].response_ids[best]]
    expect(page.locator('.tokens[data-side="response"] .tok')).to_have_text(ids)
    page.go_back()
    expect(page.locator("#groups tbody tr")).to_have_count(5)
    page.goto(f"{exported.as_uri()}#/c/0/1/train/rollout/2/3")
    expect(page.locator(".sides section")).to_have_count(2)


def test_it_can_be_searched_and_sorted(watched, exported, truth):
    rollout = truth[1]["rollout"]
    words = next(text for text in rollout.texts if len(text) >= 3)[:3]
    page = watched().page
    page.goto(f"{exported.as_uri()}#/t/0/train/rollout/1")
    page.locator("input[type=search]").fill(words)
    page.keyboard.press("Enter")
    expected = [
        prompt.uid
        for prompt, rows in zip(rollout.prompts, rollout.groups(), strict=True)
        if any(words in rollout.texts[row] for row in rows)
    ]
    expect(page.locator("#groups tbody tr:visible td.uid")).to_have_text(expected)
    page.locator("th", has_text="best").click()
    expect(page).to_have_url(re.compile("sort=best"))


def test_a_step_that_was_left_out_is_said_to_be(watched, exported):
    page = watched().page
    page.goto(f"{exported.as_uri()}#/t/0/train/rollout/3")
    expect(page.locator("h1")).to_have_text("This page is not in this file")


def test_steps_have_to_be_chosen(runs, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["view", str(runs / "base"), "--export", str(tmp_path / "x.html")])
    assert left.value.code == 2
    with pytest.raises(SystemExit) as left:
        cli.main(["view", str(runs / "base"), "--export", str(tmp_path / "x.html"), "--steps", "70"])
    assert left.value.code == 3
    assert not list(tmp_path.iterdir())
    assert "70" in capsys.readouterr().err


def test_runs_of_other_stages_go_into_one_file(tmp_path):
    for name in ("rollout", "other"):
        with rolltape.Tape(tmp_path / name, mode="record") as tape, tape.step(0):
            tape.stage(name)(lambda: {"uid": ["a"], "reward": [1.0]})()
    for pair in (("rollout", "other"), ("other", "rollout")):
        export_html([str(tmp_path / name) for name in pair], str(tmp_path / "out.html"), ALL_STEPS)
        text = (tmp_path / "out.html").read_text("utf-8")
        assert 'data-path="/c/0/1"' in text
        assert 'data-path="/c/0/1/train' not in text
        (tmp_path / "out.html").unlink()
