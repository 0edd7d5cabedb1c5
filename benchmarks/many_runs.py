"""The viewer on twenty long runs, in a real browser: what somebody waits for who opens them all at once.

    python -m benchmarks --only many_runs        in the environment of the stack `viewer`, with Chromium

A run has 1,000 steps of 1,024 samples of at most 64 tokens. One is made, and copied with metrics and an id of
its own each. Steps are further names of the same few batches, as in viewer.py. A tape more has a sample of
100,000 tokens. Seconds are from going to a page until what was asked for is drawn.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright
from rich.table import Table

import rolltape
from benchmarks.promises import Figure
from benchmarks.report import Part, console
from benchmarks.viewer import DISTINCT, repeat, resident, serving
from rolltape.tape.metrics import metrics_line

RUNS = int(os.environ.get("ROLLTAPE_VIEWER_RUNS", 20))
STEPS = int(os.environ.get("ROLLTAPE_VIEWER_STEPS", 1000))
GROUPS, PER_GROUP, TOKENS = 128, 8, 64
LONG = 100_000
FLAGS = "--no-sandbox --headless --disable-gpu --disable-background-networking --disable-component-update"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WORDS = "so we have that then hence it is one two three four five plus minus equals and the answer".split()
RARE = "serendipity"
"""A word that few responses have."""

Ask = Callable[[Page, str], None]


def section(folder: Path, rounds: int) -> Part:
    """Measure and print."""
    tapes = make_runs(folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    console.print(f"[bold]many runs[/]: {RUNS} of {STEPS} steps of {GROUPS * PER_GROUP} samples")
    taken: dict[str, list[float]] = {name: [] for name in QUESTIONS}
    memory = 0
    for _ in range(rounds):
        with serving(*tapes) as (address, _, process), browser() as chromium:
            person = chromium.new_context()  # whose browser keeps scripts from page to page
            person.new_page().goto(address + "static/viewer.css")  # one that has just started is slow
            for name, ask in QUESTIONS.items():
                page = person.new_page()
                started = time.perf_counter()
                ask(page, address)
                taken[name].append(time.perf_counter() - started)
                page.close()
            memory = max(memory, resident(process.pid))
    table = Table("", "fastest ms", "median ms", "slowest ms")
    for name, seconds in taken.items():
        table.add_row(name, *(f"{1000 * of(seconds):.0f}" for of in (min, statistics.median, max)))
    console.print(table)
    figures = {
        f"{name}, seconds": Figure(min(seconds), statistics.median(seconds))
        for name, seconds in taken.items()
    }
    return Part(figures | {"memory, MB": Figure(memory / 1e6), "on disk, GB": Figure(size / 1e9)})


def _index(page: Page, address: str) -> None:
    page.goto(address, wait_until="commit")
    page.wait_for_function(f"document.querySelectorAll('#runs tbody tr').length > {RUNS - 1}")


def _overlay(page: Page, address: str) -> None:
    on = ",".join(map(str, range(RUNS)))
    page.goto(f"{address}o?on={on}", wait_until="commit")
    page.wait_for_selector("figure canvas")


def _filter(page: Page, address: str) -> None:
    page.goto(f"{address}s/0?where=reward+>+0.99+and+response_tokens+>+60", wait_until="commit")
    page.wait_for_selector("[data-grow][data-done]", state="attached")
    page.wait_for_selector("#found tbody tr")


def _regex(page: Page, address: str) -> None:
    page.goto(f"{address}s/0?q={RARE}%5Cb.*answer&regex=1", wait_until="commit")
    page.wait_for_selector("#found tbody tr")


def _long(page: Page, address: str) -> None:
    page.goto(f"{address}t/{RUNS}/train/rollout/0/0", wait_until="commit")
    page.wait_for_selector(".tokens[data-side=response] .tok")


QUESTIONS: dict[str, Ask] = {
    "index": _index,
    "overlay of 20 runs": _overlay,
    "filter by columns": _filter,
    "first hits of a regular expression": _regex,
    "sample of 100,000 tokens": _long,
}


def make_runs(folder: Path) -> list[Path]:
    """The runs, and the tape with the long sample last."""
    first = folder / "run00"
    random = np.random.default_rng(0)
    with rolltape.Tape(first, mode="record") as tape:
        stages = {name: tape.stage(name)(lambda value: value) for name in ("rollout", "reward")}
        for step in range(DISTINCT):
            with tape.step(step):
                for name, value in batch(random, step).items():
                    stages[name](value)
    for name in stages:
        repeat(first, name, STEPS)
    command = [sys.executable, "-m", "rolltape", "index", "build", str(first)]
    subprocess.run(command, check=True, capture_output=True)
    found = [first, *(folder / f"run{at:02d}" for at in range(1, RUNS))]
    for at, path in enumerate(found):
        if at:
            shutil.copytree(first, path)
            manifest = json.loads((path / "tape.json").read_text())
            (path / "tape.json").write_text(json.dumps(manifest | {"id": secrets.token_hex(16)}))
        log(path, np.random.default_rng(at))
    return [*found, make_long(folder / "long")]


def log(path: Path, random: np.random.Generator) -> None:
    """Twelve metrics a step, as a trainer logs them."""
    with (path / "train" / "metrics.jsonl").open("wb") as file:
        for step in range(STEPS):
            drawn = random.standard_normal(11)
            values = {f"actor/metric_{at}": float(value) for at, value in enumerate(drawn)}
            file.write(metrics_line(step, values | {"reward": 1 - 1 / (step + 2) + drawn[0] / 50}) + b"\n")


def batch(random: np.random.Generator, step: int) -> dict[str, dict[str, Any]]:
    samples = GROUPS * PER_GROUP
    ids = {
        "uid": [f"q{at // PER_GROUP}" for at in range(samples)],
        "index": np.arange(samples) % PER_GROUP,
    }
    lengths = random.integers(8, TOKENS + 1, samples)
    drawn = random.integers(len(WORDS), size=int(lengths.sum()))
    tokens = np.split(drawn.astype(np.int64) + 1000, np.cumsum(lengths)[:-1])
    texts = [" ".join(WORDS[at - 1000] for at in row) for row in tokens]
    texts[500] = f"{RARE} is the answer"
    rollout = {
        "prompt": [f"Question {at // PER_GROUP}: how many are there?" for at in range(samples)],
        "response": texts,
        "response_ids": tokens,
        "logprobs": [-random.random(n).astype(np.float16).astype(np.float32) for n in lengths],
        "finish_reason": ["length" if n == TOKENS else "stop" for n in lengths],
    }
    return {
        "rollout": ids | rollout,
        "reward": ids | {"reward": random.random(samples).astype(np.float32)},
    }


def make_long(path: Path) -> Path:
    """One step with one long sample."""
    row = {"response_ids": [np.arange(LONG) % 500], "logprobs": [np.linspace(-1, 0, LONG, dtype=np.float32)]}
    text = " ".join(WORDS[at % len(WORDS)] for at in range(LONG))
    with rolltape.Tape(path, mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"uid": ["a"], "prompt": ["Think."], "response": [text]} | row)()
    return path


class browser:
    """The system's Chromium, for a while."""

    def __enter__(self) -> Any:
        self._playwright = sync_playwright().start()
        path = next(filter(None, map(shutil.which, BROWSERS)))
        self._browser = self._playwright.chromium.launch(executable_path=path, args=FLAGS.split())
        return self._browser

    def __exit__(self, *_: object) -> None:
        self._browser.close()
        self._playwright.stop()
