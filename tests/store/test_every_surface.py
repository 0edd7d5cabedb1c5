"""Every command on a tape in a directory and in a store, of plain files and of segments: the same answers.

The pages of `view` and `browse` are in tests/viewer/test_places.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import rolltape
from rolltape.cli import main
from rolltape.cli.app import COMMANDS
from rolltape.cli.arguments import LocalPath, TapePath
from rolltape.storage import has_segments, segmented, storage_at
from tests.cli_tapes import run
from tests.compacting import folded
from tests.store.surfaces import SURFACES, Place, names, record

PAGES = {"view", "browse"}
NOT_HERE = {"bisect", "index", "score", "trust"}
"""In test_more_commands_on_s3.py, as they need a repository, prompts or log-probs; `score`, which needs a
model, is in tests/trl/test_score.py.
"""

REFUSED = {
    ("view", "export"), ("view", "tokenizer"), ("view", "token_file"), ("browse", "tokenizer"),
    ("diff", "gate_file"), ("diff", "junit_file"), ("diff", "html_file"), ("diff", "tokenizer"),
    ("serve", "token_file"), ("import", "path"), ("export", "out"), ("demo", "directory"),
    ("bisect", "flags"), ("bisect", "gate_file"), ("bisect", "keep"), ("score", "model"),
}  # fmt: skip
"""Command and parameter that take a path and no URL: what is there is no tape, or the demo's own."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return record(str(tmp_path_factory.mktemp("recorded")), Path("nowhere"))


@pytest.fixture(scope="module")
def expected(recorded: Place, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a command answers on a tape of plain files in a directory; asked once."""
    known: dict[str, Any] = {}

    def answer(name: str) -> Any:
        if name not in known:
            folder = tmp_path_factory.mktemp("plain")
            known[name] = SURFACES[name](copied(recorded, str(folder / "run"), folder))
        return known[name]

    return answer


def copied(recorded: Place, folder: str, here: Path) -> Place:
    place = Place(f"{folder}/tape", f"{folder}/other", f"{folder}/calls", here, recorded.told)
    for name in ("tape", "other", "calls"):
        if "://" in folder:
            assert run("push", getattr(recorded, name), getattr(place, name)).exit_code == 0
        else:
            shutil.copytree(getattr(recorded, name), getattr(place, name))
    return place


@pytest.mark.parametrize("kept", ["folded", "in a store", "folded in a store"])
@pytest.mark.parametrize("name", sorted(SURFACES))
def test_a_command_answers_the_same(
    name: str, kept: str, recorded: Place, expected: Any, s3_url: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(segmented, "FRESH", 0.05)
    monkeypatch.setattr(segmented, "GRACE", 0.15)
    wanted = expected(name)
    place = copied(recorded, f"{s3_url}/run" if "store" in kept else str(tmp_path / "run"), tmp_path)
    if "folded" in kept:
        for tape in (place.tape, place.other, place.calls):
            folded(tape)
            assert has_segments(storage_at(tape))
            assert [one for one in names(tape) if "/step_" in one] == [], "all of it is in segments"
    assert SURFACES[name](place) == wanted


SUITE = """
from rolltape.pytest_plugin import assert_matches_tape
from tests.store.surfaces import stages

def test_training(rolltape_tape):
    stages(rolltape_tape)
    assert_matches_tape(rolltape_tape)
"""


@pytest.mark.parametrize("where", ["directory", "store"])
def test_the_pytest_plugin_replays_from_a_store_and_from_segments(
    where: str, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    tapes = s3_url if where == "store" else str(tmp_path / "tapes")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "rolltape.pytest_plugin", "-p", "no:cacheprovider"]
    words += ["-o", f"rolltape_dir={tapes}", str(tmp_path)]
    root = Path(__file__).resolve().parents[2]
    environ = {
        **os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }  # fmt: skip

    def suite(*more: str) -> tuple[int, str]:
        done = subprocess.run([*words, *more], env=environ, capture_output=True, text=True, cwd=tmp_path)
        return done.returncode, done.stdout + done.stderr

    code, said = suite()
    assert code == 1
    assert "run pytest --rolltape=record" in said
    assert suite("--rolltape=record")[0] == 0
    assert suite()[0] == 0
    tape = f"{tapes}/test_it.test_training"
    monkeypatch.setattr(segmented, "GRACE", 0.15)
    folded(tape)
    assert [one for one in names(tape) if "/step_" in one] == []
    assert suite()[0] == 0


def test_no_command_is_forgotten() -> None:
    assert set(SURFACES) | PAGES | NOT_HERE == set(COMMANDS)


def test_every_parameter_that_takes_a_path_takes_a_url_or_refuses_it() -> None:
    context = click.Context(main)
    found = {
        (name, str(param.name)): param
        for name in COMMANDS
        for param in main.get_command(context, name).params  # type: ignore[union-attr]
        if isinstance(param.type, (TapePath, click.Path, click.File)) or param.metavar in ("FILE", "PATH")
    }
    assert set(found) >= REFUSED
    for at, param in found.items():
        assert isinstance(param.type, TapePath) or (at in REFUSED and isinstance(param.type, LocalPath)), at


@pytest.mark.parametrize(
    "words",
    [
        ["import", "s3://key:SECRET@bucket/dumps", "--to", "tape"],
        ["diff", "a", "b", "--gate", "s3://bucket/gate.yaml?token=SECRET"],
        ["diff", "a", "b", "--html", "s3://bucket/page.html"],
        ["diff", "a", "b", "--tokenizer", "s3://bucket/model"],
        ["serve", "tape", "--token-file", "s3://bucket/SECRET"],
    ],
)
def test_what_is_no_tape_is_refused_at_a_url_in_a_sentence_without_secrets(words: list[str]) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert "only tapes can be at a URL; copy it to this machine" in done.stderr
    assert "SECRET" not in done.output + done.stderr


def test_what_is_written_here_says_so(s3_url: str) -> None:
    rolltape.Tape(f"{s3_url}/tape", mode="record").close()
    exported = run("export", f"{s3_url}/tape", "--to", f"{s3_url}/out.jsonl", "--format", "jsonl")
    assert exported.exit_code == 2
    assert "this machine" in exported.stderr
    demo = run("demo", "--dir", s3_url)
    assert demo.exit_code == 2
    assert "a directory of this machine" in demo.stderr
