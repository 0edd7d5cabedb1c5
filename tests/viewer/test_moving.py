"""Moving about: keys, the back button, narrow screens, light and dark, a run that is still going on."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

import rolltape
from rolltape.viewer.library import Library
from rolltape.viewer.series import Series
from tests.viewer.serving import serve

PAGES = [
    "/", "/t/0", "/t/0/train/rollout/1", "/t/0/train/rollout/1/3", "/c/0/1", "/c/0/1/train/rollout/1",
    "/c/0/1/train/rollout/1/3",
]  # fmt: skip


def press(page, key):
    """Press a key on a page that has its script by now: right after a click it may still be loading."""
    page.wait_for_load_state("load")
    page.keyboard.press(key)


def test_keys_lead_from_the_run_to_a_sample_and_back(page):
    page.goto("/t/0")
    for key in "jj":
        press(page, key)
    expect(page.locator(".item.at")).to_have_text("1")
    expect(page).to_have_url(re.compile("row=1"))
    press(page, "Enter")
    expect(page).to_have_url(re.compile("/t/0/train/rollout/1$"))
    press(page, "n")
    expect(page).to_have_url(re.compile("/t/0/train/rollout/2$"))
    press(page, "j")
    press(page, "j")
    link = page.locator("tr.at a.open").get_attribute("href")
    press(page, "Enter")
    expect(page).to_have_url(re.compile(link + "$"))
    first = page.url
    press(page, "j")
    expect(page).not_to_have_url(first)
    press(page, "k")
    expect(page).to_have_url(first)
    press(page, "n")
    expect(page).not_to_have_url(first)
    press(page, "c")
    expect(page).to_have_url(re.compile("color=mismatch"))
    press(page, "u")
    expect(page).to_have_url(re.compile("/t/0/train/rollout/2$"))
    press(page, "/")
    expect(page.locator("input[type=search]")).to_be_focused()
    page.keyboard.type("n")  # is text now
    expect(page.locator("input[type=search]")).to_have_value("n")
    press(page, "Escape")
    press(page, "?")
    expect(page.locator("#keys")).to_be_visible()


def test_back_returns_to_the_row_and_the_order_one_left(page):
    page.goto("/t/0/train/rollout/1")
    page.locator("th", has_text="length").click()
    for key in "jjj":
        press(page, key)
    uid = page.locator("tr.at td.uid").text_content()
    press(page, "Enter")
    page.wait_for_selector("#response")
    page.go_back()
    expect(page.locator("tr.at td.uid")).to_have_text(uid)
    expect(page.locator("th[aria-sort]")).to_have_text("length")


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("path", PAGES)
def test_no_page_is_wider_than_the_screen(watched, server, path, width):
    page = watched(base_url=server, width=width).page
    page.goto(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_light_and_dark_are_readable_and_can_be_switched(watched, server, theme):
    page = watched(base_url=server, color_scheme=theme).page
    page.goto("/t/0/train/rollout/1/3")

    def colours():
        values = page.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        )
        return [luminance(value) for value in values]

    text, ground = colours()
    assert (ground > text) == (theme == "light")
    assert (max(text, ground) + 0.05) / (min(text, ground) + 0.05) > 7
    press(page, "t")
    text, ground = colours()
    assert (ground > text) == (theme == "dark")
    page.reload()
    assert (colours()[1] > colours()[0]) == (theme == "dark")  # remembered


def test_new_steps_appear_while_a_run_goes_on(watched, tmp_path):
    tape = rolltape.Tape(tmp_path / "live", mode="record", background=False)
    stage = tape.stage("rollout")(
        lambda: {"uid": ["a", "a"], "prompt": ["p", "p"], "response": ["x", "y"], "reward": np.zeros(2)}
    )

    def record(step):
        with tape.step(step):
            stage()
            tape.log({"loss": float(step)})

    record(0)
    with serve(Library([str(tmp_path / "live")]), follow=True) as address:
        page = watched(base_url=address).page
        page.goto("/t/0")
        expect(page.locator("#live")).to_have_text("following")
        expect(page.locator(".steps .item")).to_have_text(["0"])
        record(1)
        record(2)
        expect(page.locator(".steps .item")).to_have_text(["0", "1", "2"], timeout=30_000)
        expect(page).to_have_title("▶ step 2 · live – Rolltape")
        page.locator("figure", has_text="loss").locator("summary").click()
        expect(page.locator("figure", has_text="loss").locator("tbody a")).to_have_text(["0", "1", "2"])
    expect(page).to_have_title("✕ live – Rolltape", timeout=30_000)
    expect(page.locator("#live")).to_have_text("the server is gone")
    tape.close()


def test_a_stage_that_lands_later_in_a_step_is_counted(tmp_path):
    tape = rolltape.Tape(tmp_path / "live", mode="record", background=False)
    rollout = tape.stage("rollout")(lambda: {"uid": ["a", "b"], "response": ["x", "y"]})
    reward = tape.stage("reward")(lambda: {"uid": ["a", "b"], "reward": np.array([1.0, 3.0])})
    series = Series(Library([str(tmp_path / "live")]), 0, "train", "rollout")
    with tape.step(0):
        rollout()
        assert "reward" not in series.advance([0], 60)[0][0].values
        reward()
        assert series.advance([0], 60)[0][0].values["reward"] == (2.0, 1.0, 3.0)
    tape.close()


def luminance(colour):
    parts = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
