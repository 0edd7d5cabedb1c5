"""Every page through axe-core, in light and in dark, wide and narrow: nothing serious for a screen reader."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

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
        expect(
            one.page.locator(
                "[data-part]:not([data-done]), [data-series]:not([data-done]), [data-grow]:not([data-done])"
            )
        ).to_have_count(0)
        results = Axe().run(one.page).response["violations"]
        found |= {
            (address, finding["id"]): [node["html"][:200] for node in finding["nodes"]][:3]
            for finding in results
            if finding["impact"] in ("serious", "critical")
        }
    one.problems.clear()  # the browser notes the 404
    assert found == {}
