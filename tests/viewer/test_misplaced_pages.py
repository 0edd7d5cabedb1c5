"""What lies in another's place is shown on no page, in no file of pages and in no terminal."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from textual.widgets import DataTable, Static

from rolltape.cli.app import app as cli
from rolltape.viewer.library import Library
from rolltape.viewer.terminal import Browser
from tests.contracts.test_misplaced_on_every_path import MISPLACED, NO_FILES, Planted, Tapes, record
from tests.viewer.serving import serve

KINDS = MISPLACED | NO_FILES
SHOWN = ["a step renamed to one that is not there", "two steps swapped", "a link to another tape", "a pipe"]
"""Of each kind one: a terminal takes its time to be set up."""


@pytest.fixture(scope="module")
def tapes(tmp_path_factory: pytest.TempPathFactory) -> Tapes:
    folder = tmp_path_factory.mktemp("tapes")
    return Tapes(*(record(folder / name) for name in ("planted", "elsewhere", "good")))


@pytest.fixture(params=KINDS)
def planted(request: pytest.FixtureRequest, tapes: Tapes, tmp_path: Path) -> Planted:
    return KINDS[request.param](tapes.laid_out(tmp_path / "t"), tapes.other)


def pages(planted: Planted) -> list[str]:
    key = planted.key
    at = f"{key.split}/{key.stage}"
    found = ["/", "/state", "/t/0", "/c/0/1", f"/t/0?split={key.split}"]
    found += [f"/t/0/{at}/{key.step}", f"/t/0/{at}/{key.step}/0", f"/t/0/{at}/{key.step}/1"]
    found += [f"/series/0/{at}", f"/series/1/{at}", f"/t/0/{key.split}/reward/{key.step}/0"]
    for both in ("/c/0/1", "/c/1/0"):
        found += [f"{both}/{at}/{key.step}", f"{both}/{at}/{key.step}/0"]
    return found


def test_no_page_shows_it(planted: Planted) -> None:
    good, key = planted.tape.parent / "good", Path(planted.place)
    with serve(Library([str(planted.tape), str(good)])) as address:
        for page in pages(planted):
            answer = httpx.get(address + page, timeout=60)
            named = key.name in answer.text or "in the place of a" in answer.text
            assert answer.status_code < 500 or named, page
            assert not [one for one in planted.marks if one in answer.text], page
        assert httpx.get(f"{address}/t/0").status_code == 200


def test_no_file_of_pages_holds_it(planted: Planted, tmp_path: Path) -> None:
    file = tmp_path / "pages.html"
    with pytest.raises(SystemExit):
        cli(["view", str(planted.tape), "--export", str(file), "--steps", "0-9"])
    text = file.read_text() if file.exists() else ""
    assert not [one for one in planted.marks if one in text]


@pytest.mark.parametrize("planted", SHOWN, indirect=True)
async def test_no_terminal_shows_it(planted: Planted) -> None:
    for row in (1, 2):  # where the step is; of one that was renamed, the last
        browser = Browser(Library([str(planted.tape)]), planted.key.split, planted.key.stage)
        async with browser.run_test(size=(200, 60)) as pilot:
            for keys in (["j"] * row, ["enter"], ["j", "enter"]):  # the steps, the groups of one, a sample
                await pilot.press(*keys)
                await pilot.pause()
                shown = [str(widget.render()) for widget in browser.screen.query(Static)]
                for table in browser.screen.query(DataTable):
                    shown += [str(cell) for name in table.rows for cell in table.get_row(name)]
                assert not [one for one in planted.marks if one in " ".join(shown)]
