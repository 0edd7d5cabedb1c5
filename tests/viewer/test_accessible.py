"""Every page through axe-core, in light and in dark, wide and narrow: nothing serious for a screen reader."""

import json

import pytest
from playwright.sync_api import expect

from rolltape.serving.live_page import PAGE, POLICY
from rolltape.serving.miss import Miss
from rolltape.serving.tally import Tally
from tests.viewer.serving import serious, settled

PAGES = (
    "/", "/o", "/matrix", "/t/0", "/t/0/train/rollout/1", "/t/0/train/loss/1", "/t/0/train/rollout/1/2",
    "/c/0/1", "/c/0/1/train/rollout/1", "/c/0/1/train/rollout/1/2", "/t/7",
    "/s/0?where=reward+>+0", "/s/0?against=1", "/p/0", "/asked/0/train/rollout/1/2", "/g/0/train/rollout/1/2",
    "/notes/0",
)  # fmt: skip


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_no_page_has_a_serious_finding(watched, server, scheme, width):
    one = watched(base_url=server, width=width, color_scheme=scheme)
    found = {}
    for address in PAGES:
        one.page.goto(address)
        settled(one.page)
        found |= {(address, name): places for name, places in serious(one.page).items()}
    one.problems.clear()  # the browser notes the 404
    assert found == {}


def told_by_serve() -> dict:
    """What `rolltape serve` answers its page while all of it has something to show."""
    tally = Tally()
    tally.calls.update(asked=9, replayed=4, missed=1, failed=1)
    tally.by_content.update(calls=1, samples=3)
    tally.differs["user"] += 2
    tally.missed("/v1/completions", "s-1", Miss("token 3 differs", "content"))
    with tally.asked("/v1/chat/completions", "s-2", 7):
        told = tally.to_json()
    hosts = [{"url": "http://a", "healthy": True, "calls": 8, "failed": 0},
             {"url": "http://b", "healthy": False, "calls": 1, "failed": 1}]  # fmt: skip
    gate = {"order": "session", "waiting": 1, "let_go": 0,
            "waits_for": [{"session": None, "arrival": 4, "step": 7, "turn": 0}]}  # fmt: skip
    return told | {"mode": "auto", "step": 7, "on_tape": 12, "unplayed": 2, "gate": gate,
                   "upstream": {"hosts": hosts}, "waiting": {"files": 1}}  # fmt: skip


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_neither_has_the_page_of_serve(watched, scheme, width):
    """The page itself; its server is not part of this stack, so its one answer is given here."""
    one = watched(base_url="http://serve.invalid", width=width, color_scheme=scheme)
    page, policy = one.page, {"content-security-policy": POLICY}
    body = json.dumps(told_by_serve())
    page.route(
        "**/rolltape/", lambda asked: asked.fulfill(body=PAGE, content_type="text/html", headers=policy)
    )
    page.route("**/rolltape/status", lambda asked: asked.fulfill(body=body, content_type="application/json"))
    page.goto("/rolltape/")
    expect(page.locator("#flight td").last).to_have_text("/v1/chat/completions")
    assert page.title() == "(2 missed) rolltape serve"
    assert serious(page) == {}
    assert page.evaluate("document.documentElement.scrollWidth") == width
