"""What makes many and long runs quick to look at: read once, kept as long as it is true, drawn in pieces."""

import json
import random
import re

import httpx
import numpy as np
import pytest

import rolltape
from rolltape.errors import RolltapeError
from rolltape.viewer.library import Library
from rolltape.viewer.web.charts import shortened
from rolltape.viewer.web.pages import LONG_TEXT, long_markup, markup
from tests.viewer.serving import serve, settled


def log(path, step, **metrics):
    with rolltape.Tape(path, mode="auto") as tape:
        tape.log(metrics, step=step)


def test_metrics_are_read_again_when_they_change(tmp_path, monkeypatch):
    log(tmp_path / "t", 0, loss=1.0, said="text")
    library = Library([str(tmp_path / "t")])
    first = library.logged(0, "train")
    assert (first.curves, first.steps, first.damaged) == ({"loss": {0: 1.0}}, {0}, ())
    assert library.logged(0, "train") is first, "nothing has changed"
    log(tmp_path / "t", 1, said="no number")
    log(tmp_path / "t", 2, loss=0.5)
    again = library.logged(0, "train")
    assert (again.curves, again.steps) == ({"loss": {0: 1.0, 2: 0.5}}, {0, 1, 2})
    path = tmp_path / "t/train/metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.6"))
    (error,) = library.logged(0, "train").damaged
    assert isinstance(error, RolltapeError)
    path.unlink()
    assert library.logged(0, "train").curves == {}


def test_scripts_are_kept_by_their_content_and_pages_never(runs):
    with serve(Library([str(runs / "base")])) as address:
        page = httpx.get(address + "/t/0")
        assert page.headers["cache-control"] == "no-store"
        found = re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text)
        assert len(found) == 2, "one style and one script"
        for path in found:
            answer = httpx.get(address + path)
            assert "immutable" in answer.headers["cache-control"]
            assert answer.headers["content-security-policy"]
            for other in (path.split("?")[0], path[:-1] + "x"):
                assert httpx.get(address + other).headers["cache-control"] == "no-store"


@pytest.mark.parametrize("sign", ["", " ", "\n", "é", "<b>\x1b", "\ud800", "🎈 "])
@pytest.mark.parametrize("length", [0, LONG_TEXT, LONG_TEXT + 1, 100_000])
def test_a_text_in_pieces_is_the_same_text(sign, length):
    rng = random.Random(length)
    text = "".join(rng.choice("abcdefgh" + sign) for _ in range(length))
    one, other = (re.sub("<[^>]*>", "", str(made(text))) for made in (long_markup, markup))
    assert one == other
    assert ("piece" in long_markup(text)) == (length > LONG_TEXT)


def test_a_long_text_is_copied_as_it_is(tmp_path, watched):
    """A browser lays out the pieces that are seen; what it has of the text is all of it."""
    text = "\n".join(f"line {at} " + "word " * (at % 40) for at in range(2000)) + "x" * 30_000
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"uid": ["a"], "prompt": ["Think."], "response": [text]})()
    with serve(Library([str(tmp_path / "t")])) as address:
        page = watched(base_url=address).page
        page.goto("/t/0/train/rollout/0/0")
        settled(page)
        assert page.locator("#response pre").evaluate("one => one.textContent") == text
        assert page.locator("#response .piece").count() > 10


def test_short_numbers_are_those_that_are_seen():
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(5000) * 10.0 ** rng.integers(-300, 300, 5000)).tolist()
    values += [0.0, -0.0, 5e-324, 1.7976931348623157e308, 1e22, 9999999.5, 0.1, 1e-7]
    for given, found in zip(values, shortened(values), strict=True):
        assert found == pytest.approx(float(f"{given:.7g}"), rel=1.1e-6, abs=0), given
        assert len(json.dumps(found)) <= 24
    usual = [value for value in values if 1e-15 < abs(value) < 1e15]
    assert shortened(usual) == pytest.approx([float(f"{value:.7g}") for value in usual], rel=2e-7)
    assert max(len(repr(value)) for value in shortened(usual)) <= 20
