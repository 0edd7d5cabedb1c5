"""Pages about two runs say what `rolltape diff` says, verdict, sentence and cause, and lead to the token."""

import logging
import re
import subprocess
import sys

import numpy as np
import pytest
from playwright.sync_api import expect

import rolltape
from rolltape.examples.grpo.train import Options, train
from rolltape.viewer import export_html
from rolltape.viewer.library import Library
from tests.viewer.serving import serve
from tests.viewer.test_pages import chart_data


def plain(text):
    return text.replace("`", "")


@pytest.fixture(scope="module")
def bug(runs):
    """A replay of `base` whose loss is another one."""
    logging.disable(logging.INFO)
    with rolltape.Tape(runs / "base", mode="replay", out=runs / "bug") as tape:
        train(Options(steps=4, prompts=5, n=4, max_tokens=6, clip_range=0.0001, kl=0.5), tape)
    logging.disable(logging.NOTSET)
    return runs / "bug"


@pytest.fixture(scope="module")
def address(runs, bug):
    with serve(Library([str(runs / "base"), str(bug)])) as address:
        yield address


def noisy(folder, off, dtype=np.float32):
    """A run whose numbers are off by little."""
    with rolltape.Tape(folder, mode="record") as tape:
        rollout = tape.stage("rollout")(
            lambda values: {"uid": ["x", "y", "z"], "scores": values.astype(dtype)}
        )
        for step in range(3):
            with tape.step(step):
                values = np.linspace(1, 2, 12, dtype=np.float64).reshape(3, 4) * (1 + off * (step > 0))
                rollout(values)
                tape.log({"loss": float(np.float32(values.sum() * (1 + off)))})
    return folder


@pytest.mark.parametrize("off", [0.0, 6e-8, 1e-2])
def test_a_pair_has_the_colour_of_its_verdict(watched, tmp_path, off):
    a, b = noisy(tmp_path / "a", 0.0), noisy(tmp_path / "b", off)
    told = rolltape.compare(a, b)
    assert told.clean == (off < 1e-3)
    with serve(Library([str(a), str(b)])) as address:
        page = watched(base_url=address).page
        page.goto("/c/0/1")
        page.wait_for_selector("#report[data-done]")
        expect(page.locator("#answer")).to_have_class(re.compile("same" if told.clean else "apart"))
        expect(page.locator("#answer")).to_contain_text(plain(told.sentence))
        expect(page.locator("#answer > b")).to_have_text(str(told.verdict))
        red = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--bad').trim()")
        assert page.locator("figure").count()  # nothing of a clean pair is drawn as an alarm
        colours = page.locator("#report *, figure").evaluate_all(
            "all => all.map(one => getComputedStyle(one).borderTopColor)"
        )
        assert all(red not in colour for colour in colours) or off > 1e-3


def test_the_report_has_cause_chain_and_findings_each_a_click_from_its_token(watched, address, runs, bug):
    told = rolltape.compare(runs / "base", bug)
    page = watched(base_url=address).page
    page.goto("/c/0/1")
    page.wait_for_selector("#report[data-done]")
    for one in [*told.causes, *told.attributions]:
        expect(page.locator("#answer")).to_contain_text(plain(getattr(one, "text", str(one))))
    assert page.locator(".chain .enters").inner_text().split()[0] == told.first.stage
    links = [link for link in told.chain if str(link.worst.verdict) != "bitwise"]
    rows = page.locator("#links tbody tr")
    expect(rows).to_have_count(len(links))
    for at, link in enumerate(links):
        expect(rows.nth(at)).to_contain_text(link.worst.path)
        expect(rows.nth(at)).to_contain_text(str(link.worst.verdict))
    rows.filter(has_text="loss/log_probs").locator("a.open").click()
    place = told.first.first
    expect(page.locator(".facts")).to_contain_text(f"{place.sample[0]} #{place.sample[1]}")
    expect(page.locator(".verdict")).to_have_class(re.compile("apart"))
    expect(page.locator(".verdict")).to_contain_text(
        f"loss / log_probs is beyond its limit from token {place.token[0]}"
    )
    expect(page.locator("#color")).to_have_value("difference of trainer log-prob")
    expect(page.locator(f'.tok.here[data-i="{place.token[0]}"]')).to_have_count(2)


def test_a_token_of_two_runs_says_both_values_and_is_coloured_by_their_difference(
    watched, address, runs, bug
):
    told = rolltape.compare(runs / "base", bug)
    split, step, place = told.first.split, told.first.step, told.first.first
    row = rolltape.open(runs / "base").samples(step, "rollout", split).places[place.sample]
    before, after = (
        rolltape.open(tape).samples(step, "loss", split)[place.sample]["log_probs"]
        for tape in (runs / "base", bug)
    )
    page = watched(base_url=address).page
    page.goto(f"/c/0/1/{split}/rollout/{step}/{row}")
    at = int(np.argmax(np.abs(after - before)))
    token = page.locator(f'.tok[data-i="{at}"]').first
    assert re.search(r"\b[hl]8\b", token.get_attribute("class")), "the largest difference has most colour"
    token.hover()
    said = next(
        line for line in page.locator("#tip").inner_text().splitlines() if line.startswith("trainer log-prob")
    )
    ours, theirs = map(float, said.removeprefix("trainer log-prob").split("→"))
    assert [ours, theirs] == pytest.approx([before[at], after[at]], rel=1e-5)


def test_steps_of_two_runs_lead_to_the_next_and_scalars_have_no_samples(watched, address, bug):
    page = watched(base_url=address).page
    page.goto("/c/0/1/train/rollout/1")
    row = page.locator("#entries tbody tr", has_text="loss / total")
    expect(row.locator("td").last).to_have_text("–")
    page.keyboard.press("n")
    expect(page).to_have_url(re.compile("/rollout/2$"))
    page.wait_for_load_state()  # its script hears keys then
    page.keyboard.press("p")
    expect(page).to_have_url(re.compile("/rollout/1$"))


def test_the_error_is_seen_on_a_phone(watched, address, bug):
    page = watched(base_url=address, width=400).page
    page.goto("/c/0/1/train/rollout/1")
    cells = page.locator("#entries tbody tr", has_text="loss / log_probs").locator("td")
    for at in range(4):
        box = cells.nth(at).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 400
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_the_baseline_comes_first_whichever_way_they_are_given(watched, runs, bug):
    with serve(Library([str(bug), str(runs / "base")])) as address:
        page = watched(base_url=address).page
        page.goto("/c/0/1")
        page.wait_for_selector("#report[data-done]")
        expect(page.locator(".crumbs b")).to_have_text("base and bug")
        expect(page.locator("#answer")).to_contain_text(plain(rolltape.compare(runs / "base", bug).sentence))


def test_runs_that_cannot_be_compared_say_why(watched, runs, bug, tmp_path):
    noisy(tmp_path / "a", 0.0)
    file = tmp_path / "a/train/rollout/step_000001.parquet"
    file.write_bytes(file.read_bytes()[:-9])
    noisy(tmp_path / "b", 0.0)
    with serve(Library([str(tmp_path / "a"), str(tmp_path / "b")])) as address:
        page = watched(base_url=address).page
        page.goto("/c/0/1")
        page.wait_for_selector("#report[data-done]")
        expect(page.locator("#report")).to_contain_text("step_000001.parquet")


def test_a_file_for_a_colleague_has_the_report(watched, runs, bug, tmp_path):
    from rolltape.steps import StepSelector

    export_html([str(runs / "base"), str(bug)], str(tmp_path / "two.html"), StepSelector.parse("1"))
    page = watched().page
    page.goto(f"file://{tmp_path}/two.html#/c/0/1")
    expect(page.locator("#answer")).to_contain_text(plain(rolltape.compare(runs / "base", bug).sentence))


def test_what_a_metric_differs_by_has_the_digits_it_takes(watched, tmp_path):
    a, b = noisy(tmp_path / "a", 0.0), noisy(tmp_path / "b", 6e-8)
    with serve(Library([str(a), str(b)])) as address:
        page = watched(base_url=address).page
        page.goto("/c/0/1")
        page.wait_for_selector("#report[data-done]")
        figure = page.locator("figure", has_text="loss")
        values = [line["values"][1] for line in chart_data(figure)["lines"]]
        assert values[0] != values[1]
        figure.locator(".plot").focus()
        for _ in range(2):
            page.keyboard.press("ArrowRight")
        read = figure.locator(".read").inner_text()
        assert all(str(value) in read for value in values)


def test_a_viewer_that_ends_does_not_wait_for_comparisons(tmp_path):
    """Those that were asked for may take hours."""
    a, b = (str(noisy(tmp_path / name, 0.0)) for name in "ab")
    code = f"""
import time
import rolltape.viewer.comparisons as comparisons
from rolltape.viewer.library import Library
comparisons.compare = lambda *runs, **how: time.sleep(600)
asked = comparisons.Comparisons(Library([{a!r}, {b!r}])).ask(0, 1)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
