"""Tapes in a store, and tapes of segments, in the terminal: the same screens as of plain files."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import DataTable

from rolltape.viewer.library import Library
from rolltape.viewer.terminal import Browser
from tests.cli_tapes import run
from tests.object_servers.fixtures import *  # noqa: F403
from tests.viewer.places import *  # noqa: F403
from tests.viewer.places import KEPT


@pytest.mark.parametrize("place", KEPT, indirect=True)
async def test_the_terminal_shows_the_same(place: str, runs: Path) -> None:
    shown = []
    for folder in (place, str(runs)):
        app = Browser(Library([f"{folder}/base"]), "train", None)
        async with app.run_test(size=(80, 40)) as pilot:
            table = app.screen.query_one(DataTable)
            steps = [list(map(str, table.get_row_at(at))) for at in range(table.row_count)]
            await pilot.press("j", "enter")
            await pilot.pause()
            table = app.screen.query_one(DataTable)
            groups = [list(map(str, table.get_row_at(at))) for at in range(table.row_count)]
            await pilot.press("enter")
            await pilot.pause()
            shown.append((steps, groups, str(app.screen.query_one("#sample").render()).replace(folder, "")))
    assert shown[0] == shown[1]
    assert len(shown[0][0]) == 4


def test_browse_says_what_a_url_lacks(runs: Path, s3_url: str) -> None:
    assert run("push", runs / "base", f"{s3_url}/base").exit_code == 0
    nothing = run("browse", f"{s3_url}/base", "--split", "val")
    assert (nothing.exit_code, nothing.stderr.startswith("nothing of split val is recorded here")) == (
        3,
        True,
    )
    missing = run("browse", f"{s3_url}/none")
    assert missing.exit_code == 2
    assert "there is no tape here" in missing.stderr
