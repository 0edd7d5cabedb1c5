"""Every page, in a real browser, against what is on the tape."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from playwright.sync_api import expect

import rolltape
from rolltape.examples.grpo.model import WORDS
from rolltape.reader.tokenizer import load_tokenizer
from rolltape.reader.wording import number
from rolltape.verify.rules.noise_floor import Floor, write_floor
from rolltape.viewer.library import Library
from tests.viewer.serving import serve, settled


def test_a_run_shows_its_steps_its_metrics_and_what_its_samples_add_up_to(page, truth):
    page.goto("/t/0")
    expect(page.locator(".strip .label")).to_have_text(
        ["rollout", "reward", "advantage", "ref_logprob", "loss"]
    )
    expect(page.locator(".steps .item")).to_have_text([str(step) for step in range(4)])
    settled(page)
    titles = page.locator("[data-series] figcaption").all_text_contents()
    assert titles[:3] == ["reward", "response length (tokens)", "log-prob of sampled tokens"]
    charts = {chart["title"]: chart for chart in map(chart_data, page.locator("[data-series] figure").all())}
    (line,) = charts["reward"]["lines"]
    for step, *seen in zip(charts["reward"]["steps"], line["values"], line["low"], line["high"], strict=True):
        rewards = truth[step]["reward"]["reward"]
        assert seen == pytest.approx([rewards.mean(), rewards.min(), rewards.max()])
    for step, value in points(charts["response length (tokens)"]).items():
        assert value == pytest.approx(np.mean([len(ids) for ids in truth[step]["rollout"].response_ids]))
    for step, value in points(charts["truncated responses (share)"]).items():
        reasons = truth[step]["rollout"].finish_reasons
        assert value == pytest.approx(np.mean([str(reason) == "length" for reason in reasons]))
    logged = [chart_data(figure) for figure in page.locator("section:last-of-type figure").all()]
    for chart in logged:
        assert points(chart) == {step: values[chart["title"]] for step, values in truth["metrics"].items()}
    titles = {chart["title"] for chart in logged}
    assert {title for title in titles if not title.startswith("trust/")} == {"reward", "loss", "grad_norm"}
    assert page.locator("figure canvas").count() == page.locator("figure").count()


def test_missing_steps_are_seen(watched, runs, tmp_path):
    shutil.copytree(runs / "base", tmp_path / "holes")
    (tmp_path / "holes/train/reward/step_000001.parquet").unlink()
    with serve(Library([str(tmp_path / "holes")])) as address:
        page = watched(base_url=address).page
        page.goto("/")
        expect(page).to_have_url(re.compile("/t/0$"))
        expect(page.locator(".strip", has_text="reward").locator(".warn")).to_have_text("1 missing")
        expect(page.locator(".strip", has_text="reward").locator("rect.there")).to_have_count(2)
        settled(page)  # else it would still be asking when its server goes


def test_a_step_shows_its_groups_with_best_and_worst(page, truth):
    page.goto("/t/0/train/rollout/2")
    rollout, rewards = truth[2]["rollout"], truth[2]["reward"]["reward"]
    rows = page.locator("#groups tbody tr")
    expect(rows).to_have_count(5)
    for at, members in enumerate(rollout.groups()):
        mine = [float(rewards[row]) for row in members]
        cells = rows.nth(at).locator("td")
        expect(cells.nth(1)).to_have_text(rollout.prompts[at].text)
        expect(cells.nth(2).locator("rect.bar")).to_have_count(4)
        texts = [number(x) for x in (max(mine), min(mine), float(np.mean(mine)), max(mine) - min(mine))]
        assert [cells.nth(column).text_content() for column in (3, 4, 5, 6)] == texts
        expect(cells.nth(9)).to_have_text(rollout.prompts[at].uid)


def test_groups_are_sorted_and_the_address_says_how(page):
    page.goto("/t/0/train/rollout/1")
    page.locator("th", has_text="spread").click()
    assert column(page, 6) == sorted(column(page, 6), reverse=True)
    expect(page).to_have_url(re.compile(r"sort=spread&dir=down"))
    page.locator("th", has_text="spread").click()
    assert column(page, 6) == sorted(column(page, 6))
    before = page.locator("#groups tbody td.uid").all_text_contents()
    page.reload()
    assert page.locator("#groups tbody td.uid").all_text_contents() == before


def test_searching_finds_prompts_responses_and_uids(page, truth):
    rollout = truth[1]["rollout"]
    words = next(text for text in rollout.texts if len(text) >= 3)[:3]
    page.goto("/t/0/train/rollout/1")
    page.locator("input[type=search]").fill(words)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"q={words}"))
    expected = [p.uid for p, rows in zip(rollout.prompts, rollout.groups(), strict=True)
                if words in p.text or any(words in rollout.texts[row] for row in rows)]  # fmt: skip
    assert expected
    expect(page.locator("#groups td.uid")).to_have_text(expected)
    page.goto("/t/0/train/rollout/1?q=^1[.]2$&regex=1")
    expect(page.locator("#groups td.uid")).to_have_text(["1.2"])
    page.goto("/t/0/train/rollout/1?q=(a%2B)%2B$&regex=1")  # would never end in a backtracking engine
    page.goto("/t/0/train/rollout/1?q=(&regex=1")
    expect(page.get_by_role("alert")).to_contain_text("not a regular expression")


def test_a_sample_shows_its_text_its_tokens_and_their_numbers(page, truth):
    page.goto("/t/0/train/rollout/2/6")
    rollout, loss = truth[2]["rollout"], truth[2]["loss"]
    expect(page.locator("#prompt pre")).to_have_text(rollout.prompts[1].text)
    expect(page.locator("#response pre")).to_have_text(rollout.texts[6] or "(empty)")
    ids = [str(i) for i in rollout.response_ids[6]]
    expect(page.locator('.tokens[data-side="response"] .tok')).to_have_text(ids)
    scales = {scale["name"]: scale["values"] for scale in page_scales(page)}
    assert scales["log-prob"] == pytest.approx(rollout.logprobs[6].tolist())
    assert scales["trainer log-prob"] == pytest.approx(loss["log_probs"][6].tolist())
    apart = loss["log_probs"][6].astype(float) - rollout.logprobs[6].astype(float)
    assert scales["mismatch"] == pytest.approx(apart.tolist(), abs=1e-9)
    advantage = float(truth[2]["advantage"]["advantage"][6])
    assert scales["advantage"] == pytest.approx([advantage] * len(ids))
    assert scales["loss / token_losses"] == pytest.approx(loss["token_losses"][6].tolist())
    page.hover('.tokens[data-side="response"] .tok >> nth=0')
    expect(page.locator("#tip")).to_contain_text(f"id {ids[0]}")
    expect(page.locator("#tip")).to_contain_text("log-prob   -")
    reward = float(truth[2]["reward"]["reward"][6])
    expect(page.locator(".facts")).to_contain_text(f"reward {number(reward)}")


def test_tokens_are_coloured_by_what_the_address_says(page):
    page.goto("/t/0/train/rollout/2/6?color=advantage")
    expect(page.locator("#color")).to_have_value("advantage")
    first = page.locator('.tokens[data-side="response"] .tok').first
    expect(first).to_have_class(re.compile(r"[hl]8"))  # the same for all tokens, so it is the most
    page.locator("#color").select_option("log-prob")
    expect(page).not_to_have_url(re.compile("color="))
    expect(first).to_have_class(re.compile(r"h\d"))
    page.locator("#color").select_option("nothing")
    expect(first).to_have_class("tok")


def test_a_tokenizer_makes_tokens_readable(watched, runs, truth):
    with serve(Library([str(runs / "base")], load_tokenizer(str(runs / "tokenizer")))) as address:
        page = watched(base_url=address).page
        page.goto("/t/0/train/rollout/2/6")
        said = [WORDS[i] for i in truth[2]["rollout"].response_ids[6]]
        expect(page.locator('.tokens[data-side="response"] .tok')).to_have_text(said)


def test_copy_buttons_copy(page, truth, server):
    page.goto("/t/0/train/rollout/2/6")
    page.locator('[data-copy="ids"]').click()
    expect(page.locator('[data-copy="ids"]')).to_have_text("copied")
    ids = ", ".join(map(str, truth[2]["rollout"].response_ids[6]))
    assert page.evaluate("navigator.clipboard.readText()") == ids
    page.locator('[data-copy="link"]').click()
    expect(page.locator('[data-copy="link"]')).to_have_text("copied")
    assert page.evaluate("navigator.clipboard.readText()") == f"{server}/t/0/train/rollout/2/6"


def test_two_runs_are_compared(page, runs):
    page.goto("/c/0/1")
    charts = {chart["title"]: chart for chart in map(chart_data, page.locator("figure").all())}
    assert [line["name"] for line in charts["loss"]["lines"]] == ["base", "packed"]
    marks = [chart["mark"] for chart in charts.values() if chart["mark"] is not None]
    assert charts["reward"]["mark"] is None
    assert marks, "another layout of the batches adds up in another order"
    expect(page.locator(".plot .mark:visible")).to_have_count(len(marks))
    page.wait_for_selector("#report[data-done]")
    told = rolltape.compare(runs / "base", runs / "packed")
    expect(page.locator("#answer")).to_contain_text(told.sentence.replace("`", ""))
    page.locator(".steps .item").first.click()
    expect(page.locator("#entries tbody tr").first).to_be_visible()


def test_a_step_of_two_runs_has_a_verdict_for_everything(page, runs):
    page.goto("/c/0/1/train/rollout/1")
    report = rolltape.compare(runs / "base", runs / "packed", steps=1)
    entries = report.comparison.entries
    expect(page.locator(".verdict").first).to_have_text(report.sentence.replace("`", ""))
    rows = page.locator("#entries tbody tr")
    expect(rows).to_have_count(len(entries))
    for at, entry in enumerate(entries):
        cells = rows.nth(at).locator("td")
        assert cells.nth(0).text_content() == f"{entry.stage} / {entry.name}"
        assert cells.nth(1).text_content().split()[0] == str(entry.verdict)


def test_a_sample_of_two_runs_shows_the_first_token_that_differs(watched, runs, tmp_path, truth):
    rollout = truth[0]["rollout"]
    ids = [row.copy() for row in rollout.response_ids]
    ids[3][1] += 1
    changed = dataclasses.replace(rollout, response_ids=ids)
    with rolltape.Tape(tmp_path / "other", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: changed)()
    with serve(Library([str(runs / "base"), str(tmp_path / "other")])) as address:
        page = watched(base_url=address).page
        page.goto("/c/0/1/train/rollout/0/3")
        expect(page.locator(".verdict")).to_have_text("The responses part at token 1.")
        expect(page.locator(".tok.differs")).to_have_text([str(ids[3][1] - 1), str(ids[3][1])])
        page.goto("/c/0/1/train/rollout/0/4")
        expect(page.locator(".verdict")).to_contain_text("The responses are the same, token for token")


def test_what_is_not_there_is_said(watched, server):
    one = watched(base_url=server)
    for address in ("/t/7", "/t/0/train/rollout/99", "/t/0/train/rollout/0/99", "/nothing"):
        assert one.page.goto(address).status == 404
        expect(one.page.locator("h1")).to_be_visible()
    one.problems.clear()  # the browser notes every 404


def column(page, at):
    return [float(text) for text in page.locator(f"#groups tbody td:nth-child({at + 1})").all_text_contents()]


def chart_data(figure):
    return json.loads(figure.locator("script").text_content())


def points(chart):
    return dict(zip(chart["steps"], chart["lines"][0]["values"], strict=True))


def page_scales(page):
    return json.loads(page.locator("#scales").text_content())


def test_a_noise_floor_holds_on_the_page_too(watched, tmp_path):
    """As on every other surface: what is noise to `rolltape diff` is noise here."""
    for name, off in (("a", 0.0), ("b", 1e-3)):
        with rolltape.Tape(tmp_path / name, mode="record", background=False) as tape, tape.step(0):
            rows = np.linspace(1, 2, 8, dtype=np.float32).reshape(2, 4) + np.float32(off)
            tape.stage("rollout")(lambda rows=rows: {"uid": ["x", "y"], "scores": rows})()
    for floor, verdict in ((None, "diverged"), (1e-2, "noise")):
        if floor is not None:
            known = Floor(3, "2026-01-01", (), {("rollout", "scores"): floor})
            write_floor(rolltape.open(tmp_path / "a").storage, known)
        told = rolltape.compare(tmp_path / "a", tmp_path / "b")
        with serve(Library([str(tmp_path / "a"), str(tmp_path / "b")])) as address:
            page = watched(base_url=address).page
            page.goto("/c/0/1/train/rollout/0")
            expect(page.locator(".verdict").first).to_have_text(told.sentence.replace("`", ""))
            expect(page.locator("#entries tbody tr", has_text="scores")).to_contain_text(verdict)
        assert str(told.verdict) == verdict
