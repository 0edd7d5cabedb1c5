"""Every page through axe-core, in light and in dark, wide and narrow: nothing serious for a screen reader."""

import pytest

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
