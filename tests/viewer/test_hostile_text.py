"""What a model says is text: in every page and on every screen, none of it is ever anything else."""

import re
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from playwright.sync_api import expect

import rolltape
from rolltape.errors import KeyNameError
from rolltape.key import check_name
from rolltape.reader.visible import visible
from rolltape.reader.wording import brief
from rolltape.steps import StepSelector
from rolltape.viewer.library import Library
from rolltape.viewer.web.single_file import export_pages
from tests.viewer.payloads import PAYLOADS
from tests.viewer.serving import serve, settled

COUNT = len(PAYLOADS)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Two tapes on which everything that can be named or said is a payload."""
    folder = tmp_path_factory.mktemp("x") / "<img src=x onerror=alert(1)>"
    for name in ("one", "two"):
        with rolltape.Tape(folder / name, mode="record") as tape:
            stage = tape.stage("rollout")(batch)
            chats = tape.stage("chat")(chat)
            for step in range(2):
                with tape.step(step):
                    stage()
                    chats()
                    tape.log({_storable(payload): float(at + step) for at, payload in enumerate(PAYLOADS)})
    # Folders that no tape would make: none of them may be shown, let alone obeyed.
    for bad in ("<script>alert(1)</script>", "..hidden", "a b"):
        (folder / "one/train" / bad.replace("/", "_")).mkdir()
    return folder


def batch():
    return {
        "uid": [_storable(payload) for payload in PAYLOADS],
        "prompt": list(PAYLOADS),
        "response": [payload + " " for payload in PAYLOADS],
        "reward": np.linspace(0, 1, COUNT),
        "response_ids": [np.arange(at % 5 + 1) for at in range(COUNT)],
        "logprobs": [-np.ones(at % 5 + 1, np.float32) for at in range(COUNT)],
        "<b onmouseover=alert(1)>column</b>": [_storable(payload) for payload in PAYLOADS],
        "extra": [{payload: payload} for payload in map(_storable, PAYLOADS)],
    }


def chat():
    return {
        "uid": [str(at) for at in range(COUNT)],
        "messages": [
            [
                {"role": _storable(payload), "content": payload},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"function": {"name": payload, "arguments": payload}}],
                },
                {
                    "role": "tool",
                    "content": [
                        {"type": "text", "text": payload},
                        {"type": "image_url", "image_url": {"url": payload}},
                    ],
                },
            ]
            for payload in PAYLOADS
        ],
        "response": list(PAYLOADS),
    }


def _storable(payload):
    """Names are UTF-8 on a tape."""
    return payload.encode("utf-8", "replace").decode()


def test_there_are_enough_payloads():
    assert len(set(PAYLOADS)) >= 50


@pytest.fixture(scope="module")
def address(hostile):
    library = Library(
        [str(hostile / "one"), str(hostile / "two")], lambda ids: "".join(PAYLOADS[i] for i in ids)
    )
    with serve(library) as found:
        yield found


def test_a_run_a_step_and_a_comparison_of_payloads_run_nothing(watched, address):
    page = watched(base_url=address).page
    page.goto("/t/0")
    settled(page)
    expect(page.locator(".strip .label")).to_have_text(["rollout", "chat"])
    for payload in PAYLOADS[:20]:
        name = visible(_storable(payload))
        expect(page.locator("figcaption", has_text=re.compile(f"^{re.escape(name)}$"))).to_have_count(1)
    read_every_plot(page)
    page.goto("/t/0/train/rollout/0")
    expect(page.locator("#groups tbody tr")).to_have_count(COUNT)
    shown = page.locator("#groups td.prompt a").all_text_contents()
    assert shown == [brief(payload) or "(no text)" for payload in PAYLOADS]
    page.locator("th", has_text="prompt").click()
    page.goto("/c/0/1")
    read_every_plot(page)
    page.goto("/c/0/1/train/rollout/0")
    page.goto("/c/0/1/train/rollout/0/3")


def read_every_plot(page):
    """Point at a step, which all plots then read out, and open all tables."""
    settled(page)
    page.locator(".u-over").first.hover()
    assert "" not in page.locator(".read").all_text_contents()
    page.evaluate("document.querySelectorAll('.values').forEach((one) => { one.open = true; })")
    expect(page.locator(".values tbody")).to_have_count(page.locator("figure").count())


@pytest.mark.parametrize("stage", ["rollout", "chat"])
def test_a_sample_shows_its_payload_as_text(watched, address, stage):
    page = watched(base_url=address).page
    for at, payload in enumerate(PAYLOADS):
        page.goto(f"/t/0/train/{stage}/0/{at}")
        text = visible(payload, "\n\t")
        said = page.locator("#prompt pre").first.evaluate("element => element.textContent")
        assert normal(said) == normal(text), payload
        assert (
            page.evaluate("document.querySelectorAll('main script:not([type=\"application/json\"])').length")
            == 0
        )
        page.mouse.move(200, 300)
        page.keyboard.press("c")


def test_searching_for_payloads_finds_them(watched, address):
    page = watched(base_url=address).page
    for payload in PAYLOADS:
        if "\ud800" in payload or len(payload) > 1000:
            continue
        assert httpx.get(f"{address}/t/0/train/rollout/0?regex=1&q={quote(payload)}").status_code == 200
        page.goto(f"/t/0/train/rollout/0?q={quote(payload)}")
        assert page.locator("#groups tbody tr").count() >= 1, payload


def test_an_export_of_payloads_runs_nothing(watched, hostile, tmp_path):
    out = tmp_path / "out.html"
    out.write_text(
        export_pages(Library([str(hostile / "one"), str(hostile / "two")]), StepSelector.parse("0")), "utf-8"
    )
    page = watched().page
    page.goto(out.as_uri())
    for path in ("/t/0", "/t/0/train/rollout/0", "/c/0/1", "/c/0/1/train/rollout/0"):
        page.goto(f"{out.as_uri()}#{path}")
        page.wait_for_selector("main nav.crumbs")
    for at in range(COUNT):
        page.goto(f"{out.as_uri()}#/t/0/train/rollout/0/{at}")
        expect(page.locator("nav.crumbs b")).to_have_text(f"sample {at}")
        said = page.locator("#prompt pre").first.evaluate("element => element.textContent")
        assert normal(said) == normal(visible(PAYLOADS[at], "\n\t"))


def test_neither_a_stage_nor_a_split_can_be_named_like_a_payload():
    for payload in PAYLOADS:
        for kind in ("stage", "split"):
            with pytest.raises(KeyNameError):
                check_name(kind, payload)


def normal(text):
    """Browsers turn every line end into one kind."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
