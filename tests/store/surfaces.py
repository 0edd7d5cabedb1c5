"""What every command says about a tape, wherever the tape is and however its files are kept.

A surface is a function of a tape, and of a second one beside it where it needs two. It returns what a user is
told and what is on the tapes then. Names of places are taken out: nothing else may depend on them.
"""

from __future__ import annotations

import json
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.sample_notes import Marked, Notes
from rolltape.storage import joined, storage_at
from rolltape.verify.rerun.formulas import grpo
from tests.cli_tapes import in_process, run
from tests.serve.engine import Engine, ask, chat

STEPS, SAMPLES = 4, 6
DAMAGED = "train/rollout/step_000002.parquet"

TRAINER = """
import sys
sys.path.insert(0, {root!r})
from tests.store.surfaces import train
train(rolltape_mode=None, dir=None)
"""


def train(
    dir: str | None, rolltape_mode: str | None = "record", *, wrong: bool = False, **options: Any
) -> None:
    """A trainer with four stages, one of them computed live in a replay."""
    given = {} if rolltape_mode is None else {"dir": dir, "mode": rolltape_mode}
    tape = rolltape.Tape(**given, background=False, **options) if given else rolltape.Tape.from_env()
    with tape:
        stages(tape, wrong=wrong)


def stages(tape: rolltape.Tape, *, wrong: bool = False) -> None:
    """What the trainer computes."""

    @tape.stage("rollout")
    def rollout(step: int) -> dict[str, Any]:
        rng = np.random.default_rng(step)
        return {
            "uid": [f"p{at // 3}" for at in range(SAMPLES)],
            "prompt_text": [f"What is {at} + {step}?" for at in range(SAMPLES)],
            "responses": rng.integers(0, 999, (SAMPLES, 8)),
            "logprobs": rng.standard_normal((SAMPLES, 8)).astype(np.float32),
        }

    @tape.stage("reward", inputs=True)
    def reward(batch: dict[str, Any]) -> dict[str, Any]:
        return {"uid": batch["uid"], "reward": batch["logprobs"].sum(1)}

    @tape.stage("advantage", replay=False)
    def advantage(batch: dict[str, Any]) -> dict[str, Any]:
        found = grpo(batch["reward"], batch["uid"])["advantage"]
        if wrong and batch["reward"][0] != 0:
            found = found + np.float32(0.5)
        return {"uid": batch["uid"], "advantage": found}

    for step in range(STEPS):
        with tape.step(step):
            tape.log({"loss": float(advantage(reward(rollout(step)))["advantage"][0])})


@dataclass(frozen=True)
class Place:
    """Tapes side by side, in a directory or in a store."""

    tape: str
    """What `train` recorded."""
    other: str
    """What a replay of it wrote, with another advantage."""
    calls: str
    """What a server recorded."""
    here: Path
    """A folder of this machine, for what is no tape."""
    told: dict[str, str]
    """The answers that the server gave."""

    def beside(self, name: str) -> str:
        """A place for another tape, of the same kind."""
        return joined(self.tape.rsplit("/", 1)[0], name)

    def said(self, *words: Any, code: int = 0, stderr: bool = True, **environ: str) -> str:
        """What a command prints, without names of places and times."""
        done = run(*words, env=environ or None)
        assert done.exit_code == code, done.output + done.stderr
        assert "Traceback" not in done.stderr
        return self.plain(done.stdout + (done.stderr if stderr else ""))

    def plain(self, text: str) -> str:
        for name in ("tape", "other", "calls"):
            text = text.replace(getattr(self, name), f"<{name}>")
        text = text.replace(self.tape.rsplit("/", 1)[0], "<folder>").replace(str(self.here), "<here>")
        text = re.sub(r"\btape [0-9a-f]{8}\b", "tape <id>", text)  # an accepted tape gets a new one
        return re.sub(r"\s+", " ", re.sub(r"[─━╌]+", "-", text))


def contents(tape: str) -> dict[str, Any]:
    """What is on a tape, value by value."""
    opened = rolltape.open(tape)
    found = {
        one.key.path: {name: _bits(column) for name, column in one.batch().columns.items()}
        for one in opened.recordings()
    }
    return {"recordings": found, "metrics": {split: opened.metrics(split) for split in opened.splits}}


def _bits(column: Any) -> Any:
    return (column.dtype.str, column.shape, column.tobytes()) if isinstance(column, np.ndarray) else column


def ls(place: Place) -> Any:
    return place.said("ls", place.tape), place.said("ls", place.tape.rsplit("/", 1)[0], "--json")


def show(place: Place) -> Any:
    return place.said("show", place.tape, 1), place.said("show", place.tape, 2, "--samples", "0,3")


def notes(place: Place) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLTAPE_NOTES", str(place.here / "notes"))
        kept = Notes(rolltape.open(place.tape))
        for step in (2, 1):
            kept.write(Marked("train", "rollout", step, "u", step), f"at {step}", ["odd"])
        told = json.loads(run("notes", place.tape, "--json").stdout)["notes"]
        return [(one["step"], one["uid"], one["index"], one["note"], one["tags"]) for one in told]


def check(place: Place) -> Any:
    return place.said("check", place.tape, place.calls)


def repair(place: Place) -> Any:
    copy = place.beside("copy")
    place.said("push", place.tape, copy)
    storage = storage_at(place.tape)
    storage.publish(DAMAGED, [b"PAR1 and nothing more PAR1"], replace=True)
    assert "damaged" in place.said("check", place.tape, code=1)
    return place.said("repair", place.tape, "--from", copy), place.said("check", place.tape)


def diff(place: Place) -> Any:
    gate = place.here / "gate.json"
    rules = [{"match": "advantage/*", "atol": 1.0}, {"match": "metrics/*", "atol": 1.0}]
    gate.write_text(json.dumps({"rules": rules, "inputs": ["rollout"]}))
    junit, page = place.here / "junit.xml", place.here / "diff.html"
    words = ["diff", place.tape, place.other]
    return (
        place.said(*words, code=1),
        place.said(*words, "--json", "--junit", junit, "--html", page, code=1),
        place.said("diff", place.tape, place.tape),
        place.said(*words, "--gate", gate, code=0),
        page.exists(),
        len(re.findall("<testcase", junit.read_text())),
    )


def noise(place: Place) -> Any:
    script = place.here / "train.py"
    script.write_text(TRAINER.format(root=str(Path(__file__).resolve().parents[2])))
    words = ["noise", place.tape, "--runs", 1, "--keep", place.beside("kept"), sys.executable, script]
    said = place.said(*words, stderr=False)
    return said, contents(place.beside("kept/run0")), place.said("diff", place.tape, place.other, code=1)


def accept(place: Place) -> Any:
    words = ["accept", place.other, "--as", place.tape, "--reason", "a new loss", "--author", "me"]
    said = place.said(*words)
    return said, contents(place.tape), place.said("diff", place.tape, place.other, stderr=False)


def rerun(place: Place) -> Any:
    return (
        place.said("rerun", place.tape, 2, "--stage", "advantage"),
        place.said("rerun", place.other, 2, "--stage", "advantage", "--json", code=1),
    )


def cut(place: Place) -> Any:
    out = place.beside("cut")
    said = place.said("cut", place.tape, "--steps", "1-2", "--samples", "0-2", "--out", out, stderr=False)
    return said, contents(out), place.said("check", out)


def filter_(place: Place) -> Any:
    out, prompts = place.beside("filtered"), place.here / "prompts.parquet"
    said = place.said("filter", place.tape, "--where", "reward > 0 and step > 0", "--to", out)
    place.said("filter", place.tape, "--where", "reward > 0", "--prompts", "--to", prompts)
    return said, contents(out), place.said("check", out), prompts.stat().st_size


def redact(place: Place) -> Any:
    out = place.beside("redacted")
    place.said("redact", place.tape, "--out", out)
    found = contents(out)["recordings"]
    assert "What is" not in repr(found)
    return sorted(found), {name: sorted(columns) for name, columns in found.items()}


def doctor(place: Place) -> Any:
    done = run("doctor", place.tape, "--json")
    facts = json.loads(done.stdout)["facts"]
    assert any(place.tape in fact["value"] for fact in facts), "it says where the tape is"
    return done.exit_code, [fact["name"] for fact in facts if fact["attention"]]


def prune(place: Place) -> Any:
    place.said("prune", place.tape, "--steps", "0-1", "--pin", "1", "--yes")
    return contents(place.tape), place.said("check", place.tape)


def compact(place: Place) -> Any:
    before = contents(place.tape)
    place.said("compact", place.tape, "--keep", 0, "--settled", 0)
    assert contents(place.tape) == before
    return before


def push(place: Place) -> Any:
    place.said("push", place.tape, place.beside("pushed"))
    return contents(place.beside("pushed")), place.said("diff", place.tape, place.beside("pushed"))


def pull(place: Place) -> Any:
    place.said("pull", place.tape, place.here / "pulled")
    return contents(str(place.here / "pulled")), place.said("check", place.here / "pulled")


def sync(place: Place) -> Any:
    other = place.beside("synced")
    place.said("push", place.tape, other)
    with rolltape.Tape(other, mode="auto", background=False) as tape, tape.step(STEPS):
        tape.stage("rollout")(lambda: {"uid": ["a"]})()
    place.said("sync", place.tape, other)
    return contents(place.tape), contents(other) == contents(place.tape)


def drain(place: Place) -> Any:
    return place.said("drain", place.tape)


def run_(place: Place) -> Any:
    script = place.here / "train.py"
    script.write_text(TRAINER.format(root=str(Path(__file__).resolve().parents[2])))
    done = []
    for mode, tape in (("replay", place.tape), ("auto", place.tape), ("record", place.beside("run"))):
        # The trainer is a process of its own, and so is the command: it passes its environment on.
        told = in_process("run", "--mode", mode, "--dir", tape, "--", sys.executable, str(script))
        assert told.returncode == 0, told.stderr
        done.append(re.findall(r"has \d+ recordings, \d+ of them new|\d+ replayed", told.stderr))
    return done, contents(place.beside("run"))["recordings"].keys(), contents(place.tape)


def serve(place: Place) -> Any:
    words = [sys.executable, "-m", "rolltape", "serve", place.calls, "--mode", "replay", "--json"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        told = {}
        for step, question in enumerate(place.told):
            told[question] = ask(url, chat(question), X_Rolltape_Step=str(step)).body.decode()
    finally:
        server.send_signal(signal.SIGTERM)
        out, _ = server.communicate(timeout=60)
    assert (server.returncode, told) == (0, place.told)
    return json.loads(out)["calls"], json.loads(out)["levels"]


def import_(place: Place) -> Any:
    folder = place.here / "dumps"
    folder.mkdir()
    for step in (STEPS - 1, STEPS):  # one is on the tape already
        dump = {"samples": [{"reward": 1.0, "response": "two"}], "rollout_id": step}
        (folder / f"{step}.pt").write_bytes(pickle.dumps(dump))
    return place.said("import", folder, "--to", place.tape), contents(place.tape)


def export(place: Place) -> Any:
    lines, table = place.here / "rows.jsonl", place.here / "rows.parquet"
    said = place.said("export", place.tape, "--to", lines, "--format", "jsonl")
    place.said("export", place.tape, "--to", table, "--format", "parquet", "--steps", "1-2")
    return said, lines.read_text(), table.stat().st_size


def demo(place: Place) -> Any:
    """Its tapes are on this machine, and it says so."""
    return run("demo", "--dir", "s3://bucket/demo").stderr


def completion(place: Place) -> Any:
    """Of steps, as the shell asks for them."""
    asked = {"COMP_WORDS": f"rolltape show {place.tape} ", "COMP_CWORD": "3"}
    offered = in_process(_ROLLTAPE_COMPLETE="bash_complete", **asked).stdout.split()
    assert offered == [f"plain,{step}" for step in range(STEPS)]
    return run("completion", "bash").stdout


SURFACES: dict[str, Callable[[Place], Any]] = {
    "run": run_, "import": import_, "filter": filter_,
    **{one.__name__: one for one in (
        ls, show, notes, check, repair, diff, noise, accept, rerun, cut, redact, doctor, prune, compact, push,
        pull, sync, drain, serve, export, demo, completion,
    )},
}  # fmt: skip
"""Command -> what it answers."""


def record(folder: str, here: Path) -> Place:
    """The tapes, in a folder of this machine."""
    place = Place(f"{folder}/tape", f"{folder}/other", f"{folder}/calls", here, {})
    train(place.tape)
    train(place.tape, "replay", wrong=True, out=place.other)
    with Engine() as engine, rolltape.serve(place.calls, engine.url, mode="record") as server:
        for step, question in enumerate(("one", "two", "three")):
            server.step(step)
            place.told[question] = ask(server.url, chat(question)).body.decode()
    return place


def names(tape: str) -> list[str]:
    """The files of a tape as its storage has them: segments, and what is in none."""
    return sorted(stat.name for stat in storage_at(tape).files.everything())
