"""`rolltape bisect` finds the one of 64 commits that breaks the reference trainer; some do not build."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import rolltape
from tests.bisecting import History, environment, git
from tests.cli_tapes import run

SOURCE = Path(rolltape.__file__).parent / "examples" / "grpo"
FAULT, BROKEN = 37, {5, 31, 32, 44}
OPTIONS = "--steps 2 --prompts 4 --n 4 --max-tokens 6"
TAPES = '--mode replay --dir "$ROLLTAPE_DIR" --out "$ROLLTAPE_OUT"'
REPLAY = f"exec {sys.executable} -m trainer {TAPES} {OPTIONS}"


def commits(folder: Path) -> list[str]:
    """The trainer, 64 commits long: notes everywhere, in one a fault, in some an error of syntax."""
    files = {
        f"trainer/{path.name}": path.read_text().replace("rolltape.examples.grpo", "trainer")
        for path in SOURCE.glob("*.py")
    }
    history = History(folder)
    names = sorted(files)
    for at in range(64):
        files[names[at % len(names)]] += f"# Note {at}\n"
        if at == FAULT:
            sound = files["trainer/loss.py"]
            files["trainer/loss.py"] = sound.replace("(spread + 1e-4)", "(spread + 1e-2)")
            assert files["trainer/loss.py"] != sound
        broken = {"trainer/__init__.py": "def half(\n"} if at in BROKEN else {}
        history.add(files | broken, f"Change {at}")
    return history.write()


def test_the_fault_is_found_in_six_replays(tmp_path, monkeypatch):
    ids = commits(tmp_path / "repo")
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}  # others may be busy, too
    for name, value in environment(**own).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path / "repo")
    git(tmp_path / "repo", "checkout", "-q", ids[0])
    record = [sys.executable, "-m", "trainer", "--mode", "record", "--dir", "../base", *OPTIONS.split()]
    subprocess.run(record, check=True, capture_output=True)
    noise = run("noise", "../base", "--runs", 1, "--perturb", "--", "sh", "-c", REPLAY)
    assert noise.exit_code == 0, noise.stderr
    done = run("bisect", "../base", "--json", "--good", ids[0], "--bad", ids[63], "--", "sh", "-c", REPLAY)
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert found["commit"]["id"] == ids[FAULT]
    assert "\n-        out[members] =" in found["diff"]
    assert "(spread + 1e-2)" in found["diff"]
    assert found["divergence"]["path"] == "advantage/advantage"
    assert sum(one["outcome"] != "skipped" for one in found["trials"]) <= 2 + 6
    assert any(one["outcome"] == "skipped" for one in found["trials"])
