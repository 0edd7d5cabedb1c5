"""The page of ``rolltape diff --html``: one file, nothing fetched, nothing run, all text escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import rolltape
from tests.cli_tapes import run

EVIL = "</style><script>alert(1)</script><img src=http://x.test onerror=a>\"'&"
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Checks that every element is closed, and keeps what the page consists of."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts, self.attributes = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def write(path, factor=1.0, name="loss", nan=False, steps=5, **options):
    with rolltape.Tape(path, mode="record", background=False, **options) as tape:
        rollout = tape.stage("rollout")(lambda value: value)
        loss = tape.stage("loss")(lambda value: value)
        for step in range(steps):
            with tape.step(step):
                uids = [f"{EVIL}{at}" for at in range(3)]
                ids = [np.array([5, 7, 11]), np.array([13]), np.array([17, 19])]
                rollout({"uid": uids, "response_ids": ids, "response": [EVIL, "b", "c"]})
                rows = [row.astype(np.float32) * np.float32(factor) for row in ids]
                if nan:
                    rows[2][1] = np.nan
                loss({"uid": uids, "log_probs": rows})
                tape.log({name: float(step) * factor, EVIL: 1.0, "note": "text"})
    return path


@pytest.fixture
def page(tmp_path):
    def make(baseline=None, **candidate):
        a, b = write(tmp_path / "a", **(baseline or {})), write(tmp_path / "b", **candidate)
        file = tmp_path / "out.html"
        run("diff", a, b, "--html", file)
        return file.read_text(encoding="utf-8")

    return make


def test_it_is_one_file_that_fetches_and_runs_nothing(page):
    found = Page(page(factor=1.5))
    assert not {"script", "img", "link", "iframe", "object", "embed", "form"} & set(found.tags)
    assert not [
        name for name, _ in found.attributes if name in ("src", "href", "srcset") or name.startswith("on")
    ]
    assert "http" not in re.sub(re.escape(EVIL), "", " ".join(str(value) for _, value in found.attributes))


def test_what_a_tape_holds_is_text(page):
    text = page(factor=1.5, fingerprint={"x": EVIL})
    assert "<script" not in text
    assert "<img" not in text
    assert EVIL in Page(text).text


def test_it_has_the_answer_the_curves_the_chain_and_the_tokens(page):
    found = Page(page(factor=1.5))
    assert "First divergence: step 0, stage loss , log_probs , sample 0" in found.text
    assert "Looks like: scaled by 1.5" in found.text
    for head in ("Findings", "Curves", "The chain of stages", "Worst samples", "The same on both sides?"):
        assert head in found.text
    assert found.tags.count("figure") == 2  # the numbers that were logged, and no text
    assert found.tags.count("svg") == 2 + 2  # and how the two things that diverge go over the steps
    assert found.tags.count("polyline") == 4
    titles = [value for name, value in found.attributes if name == "title"]
    assert titles[0] == "place 0, id 17, 17 → 25.5"
    assert "17" in found.texts


def test_values_that_are_not_finite_are_drawn_around(page):
    found = Page(page(nan=True))
    assert "place 1, id 19, 19 → nan" in [value for name, value in found.attributes if name == "title"]
    assert "nan" not in " ".join(
        value for name, value in found.attributes if name in ("points", "x1", "y2", "cy")
    )


def test_a_clean_comparison_has_a_page_too(page):
    found = Page(page())
    assert "No divergence" in found.text
    assert "Findings" not in found.text
    assert "Worst samples" not in found.text


def test_runs_of_other_lengths(page):
    found = Page(page(steps=3))
    assert "the candidate did not record it" in found.text


def test_light_dark_and_paper(page):
    text = page()
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
