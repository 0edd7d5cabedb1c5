"""A real browser, real servers, and tapes of the reference trainer."""

from __future__ import annotations

import logging
import shutil

import pytest
from playwright.sync_api import sync_playwright

import rolltape
from rolltape.examples.grpo.model import make_tokenizer
from rolltape.examples.grpo.train import Options, train
from rolltape.viewer.library import Library
from tests.viewer.serving import Watched, serve

FLAGS = (
    "--no-sandbox --headless --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --no-first-run"
)
STEPS = 4


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Two tapes: a recorded run, and its replay with another layout of the batches."""
    folder = tmp_path_factory.mktemp("runs")
    small = {"steps": STEPS, "prompts": 5, "n": 4, "max_tokens": 6}
    logging.disable(logging.INFO)
    with rolltape.Tape(folder / "base", mode="record") as tape:
        train(Options(**small), tape)
    with rolltape.Tape(folder / "base", mode="replay", out=folder / "packed") as tape:
        train(Options(**small, layout="packed", token_budget=64), tape)
    logging.disable(logging.NOTSET)
    make_tokenizer().save_pretrained(folder / "tokenizer")
    return folder


@pytest.fixture(scope="module")
def chromium():
    """One browser for the tests of a file. Its event loop runs on, so terminals are tested in another."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture
def watched(chromium):
    """Makes pages that fail the test if they complain, open a dialog, or ask anybody but their own server."""
    opened = []

    def make(**options) -> Watched:
        opened.append(Watched(chromium, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.close()
    for one in opened:
        assert one.problems == []


@pytest.fixture(scope="session")
def server(runs):
    with serve(Library([str(runs / "base"), str(runs / "packed")])) as address:
        yield address


@pytest.fixture
def page(watched, server):
    """A page of the server with both runs."""
    return watched(base_url=server).page


@pytest.fixture(scope="session")
def truth(runs):
    """What is on the tape, read without the viewer: step -> the values of its stages."""
    tape = rolltape.Tape(runs / "base", mode="replay")
    stages = ("rollout", "reward", "advantage", "loss")
    found = {
        step: {stage: tape.recording(step, stage=stage).value() for stage in stages} for step in range(STEPS)
    }
    found["metrics"] = tape.metrics()
    tape.close()
    return found
