"""`index`, `trust` and `bisect` on tapes of a real S3 server, folded ones too: what a directory answers.

The other commands are in test_every_surface.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.storage import segmented
from tests import bisecting, test_trust_tapes
from tests.cli_tapes import run
from tests.compacting import folded
from tests.store.surfaces import train


@pytest.fixture(autouse=True)
def _fresh_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented, "FRESH", 0.05)
    monkeypatch.setattr(segmented, "GRACE", 0.15)


def pushed(tape: Path, url: str) -> str:
    """A copy in the store."""
    assert run("push", tape, url).exit_code == 0
    return url


def in_segments(url: str) -> str:
    """The same place, folded."""
    assert folded(url).segments
    return url


def told(*words: Any, code: int = 0) -> str:
    done = run(*words)
    assert done.exit_code == code, done.output + done.stderr
    return done.stdout + done.stderr


def test_the_index_of_samples(s3_url: str, tmp_path: Path) -> None:
    train(str(tmp_path / "tape"))
    url = pushed(tmp_path / "tape", f"{s3_url}/tape")
    answers = []
    for place in (str(tmp_path / "tape"), url, in_segments(url)):
        said = told("index", "build", place).partition(" samples")[0], told("index", "check", place)
        shown = json.loads(told("index", "show", place, "--json"))
        answers.append((said, json.dumps(shown).count('"stage"')))
    assert answers[1:] == [answers[0]] * 2
    assert told("check", url).endswith("clean\n"), "an index is no foreign file"


def test_how_far_a_replay_may_be_trusted(s3_url: str, tmp_path: Path) -> None:
    base = test_trust_tapes.record(tmp_path / "base")
    out = test_trust_tapes.replay(base, tmp_path / "moved", drift=0.2)
    wanted = rolltape.trust(out, base)
    there = [pushed(base, f"{s3_url}/base"), pushed(out, f"{s3_url}/moved")]
    assert wanted.verdict is not rolltape.trust(base).verdict
    for places in (there, [in_segments(one) for one in there]):
        found = rolltape.trust(places[1], places[0])
        assert (found.verdict, found.strip, found.drift, found.floor) == (
            wanted.verdict, wanted.strip, wanted.drift, wanted.floor,
        )  # fmt: skip
        lines = told("trust", places[1], places[0], code=1)
        assert found.verdict.value in lines


def test_the_commit_that_made_a_replay_diverge(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bisecting.environment(XDG_CACHE_HOME=str(tmp_path / "cache")).items():
        monkeypatch.setenv(name, value)
    commits = bisecting.line_of(tmp_path / "repo", 3, fault=1)
    bisecting.record(tmp_path / "repo", commits[0], tmp_path / "tape")
    url = in_segments(pushed(tmp_path / "tape", f"{s3_url}/tape"))
    monkeypatch.chdir(tmp_path / "repo")
    ends = ["--good", commits[0], "--bad", commits[-1], "--", sys.executable, "train.py"]
    done = run("bisect", url, "--json", *ends)
    assert done.exit_code == 1, done.stderr
    assert commits[1] in done.stdout
    assert json.loads(done.stdout)
