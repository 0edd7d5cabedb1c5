"""Tapes in a store, and tapes of segments, in the browser: the same pages as of plain files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import expect

import rolltape
from rolltape.viewer.library import Library
from tests.cli_tapes import run
from tests.object_servers.fixtures import *  # noqa: F403
from tests.viewer.places import *  # noqa: F403
from tests.viewer.places import KEPT
from tests.viewer.serving import serve

PAGES = (
    "/",
    "/t/0",
    "/t/0/train/rollout/1",
    "/t/0/train/rollout/1/7",
    "/c/0/1/train/rollout/1",
    "/c/0/1/train/rollout/2/3",
)


def pages(folder: str) -> dict[str, str]:
    """What the server sends, without the names of places."""
    with serve(Library([f"{folder}/base", f"{folder}/packed"])) as address:
        found = {page: httpx.get(address + page, timeout=60) for page in PAGES}
    assert {answer.status_code for answer in found.values()} == {200}
    return {
        page: re.sub(r"127\.0\.0\.1:\d+", "", answer.text.replace(folder, ""))
        for page, answer in found.items()
    }


@pytest.mark.parametrize("place", KEPT, indirect=True)
def test_the_pages_are_the_same(place: str, runs: Path) -> None:
    assert pages(place) == pages(str(runs))


@pytest.mark.parametrize("place", ["folded in a store"], indirect=True)
def test_a_browser_walks_through_a_run_in_a_store(place: str, watched) -> None:
    with serve(Library([f"{place}/base", f"{place}/packed"])) as address:
        page = watched(base_url=address).page
        page.goto("/t/0")
        expect(page.locator(".steps .item")).to_have_text(["0", "1", "2", "3"])
        page.goto("/t/0/train/rollout/1/7")
        expect(page.locator("main")).to_contain_text("uid")
        page.goto("/c/0/1/train/rollout/1")
        expect(page.locator("main")).to_be_visible()


def test_a_browser_follows_a_run_that_records_to_a_store(s3_url: str, watched) -> None:
    with rolltape.Tape(f"{s3_url}/live", mode="record") as tape:
        stage = tape.stage("rollout")(lambda: {"uid": ["a", "a"], "reward": np.zeros(2)})

        def record(step: int) -> None:
            with tape.step(step):
                stage()
                tape.log({"loss": float(step)})
            tape.flush()

        record(0)
        with serve(Library([f"{s3_url}/live"]), follow=True) as address:
            page = watched(base_url=address).page
            page.goto("/t/0")
            expect(page.locator("#live")).to_have_text("following")
            expect(page.locator(".steps .item")).to_have_text(["0"])
            record(1)
            expect(page.locator(".steps .item")).to_have_text(["0", "1"], timeout=30_000)
            page.goto("about:blank")  # it asks for news as long as it is open


def test_a_page_lists_as_much_however_many_steps_there_are(s3_url: str, s3_proxy) -> None:
    lists = []
    for count in (2, 8):
        with rolltape.Tape(f"{s3_url}/{count}", mode="record") as tape:
            stages = [
                tape.stage(name)(lambda: {"uid": ["a"], "reward": [0.5]}) for name in ("rollout", "reward")
            ]
            for step in range(count):
                with tape.step(step):
                    for stage in stages:
                        stage()
        with serve(Library([f"{s3_url}/{count}"])) as address:
            asked = []
            for page in ("/t/0", "/t/0/train/rollout/1", "/t/0/train/rollout/1/0"):
                s3_proxy.forget()
                assert httpx.get(address + page, timeout=60).status_code == 200
                mine = f"{s3_url.split('/', 3)[3]}/{count}/"  # a viewer of another test may still be at work
                asked.append(sum(mine in one for one in s3_proxy.lists))
            lists.append(asked)
    assert lists[0] == lists[1]
    assert all(lists[0])


@pytest.mark.parametrize("place", ["folded in a store"], indirect=True)
def test_the_command_serves_a_url(place: str) -> None:
    words = [
        sys.executable,
        "-m",
        "rolltape",
        "view",
        f"{place}/base",
        "--no-open",
        "--at",
        "train/rollout/1",
    ]
    viewer = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    assert viewer.stdout is not None
    try:
        address = viewer.stdout.readline().strip()
        assert address.endswith("/t/0/train/rollout/1")
        assert "rollout" in httpx.get(address, timeout=60).text
    finally:
        viewer.send_signal(signal.SIGINT)
        _, said = viewer.communicate(timeout=60)
    assert viewer.returncode == 0, said


@pytest.mark.parametrize("place", KEPT, indirect=True)
def test_the_file_that_is_exported_is_the_same(place: str, runs: Path, tmp_path: Path) -> None:
    texts = []
    for folder in (place, str(runs)):
        out = tmp_path / "page.html"
        assert run("view", f"{folder}/base", "--export", out, "--steps", "1-2").exit_code == 0
        texts.append(out.read_text().replace(folder, ""))
    assert texts[0] == texts[1]


def test_the_file_is_not_written_to_a_store(runs: Path, s3_url: str) -> None:
    done = run("view", runs / "base", "--export", f"{s3_url}/page.html", "--steps", "1")
    assert done.exit_code == 2
    assert "a file of this machine" in done.stderr
    refused = run("view", runs / "base", "--tokenizer", f"{s3_url}/model")
    assert refused.exit_code == 2
    assert "only tapes can be at a URL" in refused.stderr
