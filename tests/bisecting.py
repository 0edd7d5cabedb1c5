"""A repository with a trainer that is changed commit by commit, and a tape of its first commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import rolltape

ROOT = Path(__file__).resolve().parent.parent

TRAINER = """
import os
import sys
from pathlib import Path

import numpy as np

import rolltape
from loss import KL, losses

noise = float(os.environ.get("NOISE", "0"))
tape = rolltape.Tape.from_env()
if counter := os.environ.get("COUNTER"):
    with open(counter, "a") as file:
        print(Path("version").read_text().strip() if Path("version").exists() else "?", file=file)


@tape.stage("rollout")
def generate(step):
    random = np.random.default_rng(step)
    rows = 6
    return {
        "uid": [f"{step}.{row // 2}" for row in range(rows)],
        "responses": random.integers(1, 99, (rows, 5)),
        "logprobs": -random.random((rows, 5)).astype(np.float32),
    }


@tape.stage("loss", replay=False)
def loss(batch):
    found = losses(batch["logprobs"])
    found = found * np.float32(1 + noise * np.random.default_rng(os.getpid()).uniform(-1, 1))
    return {"uid": batch["uid"], "token_losses": found}


with tape:
    for step in range(2):
        with tape.step(step):
            tape.log({"loss": float(loss(generate(step))["token_losses"].mean())})
"""
LOSS = """
import numpy as np

KL = {kl}


def losses(logprobs):
    return (np.exp(logprobs) * np.float32({factor}) + np.float32(KL)).astype(np.float32)
"""
BROKEN = "import a_module_that_there_is_not\n"
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org", "GIT_COMMITTER_NAME": "ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}  # fmt: skip


def environment(**more: str) -> dict[str, str]:
    """The environment of commands in the repository."""
    own = {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **GIT, **own, **more}


def git(folder: Path, *words: str, stdin: bytes = b"") -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], input=stdin, capture_output=True, env=environment()
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def loss(faulty: bool = False, kl: float = 0.1, factor: float | None = None) -> str:
    return LOSS.format(kl=kl, factor=factor or (1.001 if faulty else 1.0))


class History:
    """Commits that are written quickly, each with all its files, and with any parents."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        git(folder, "init", "-q", "-b", "main")
        self.mark = 0
        self.stream = b""

    def add(self, files: dict[str, str], subject: str, parents: list[int] | None = None) -> int:
        """One more commit; a number by which a later one names it."""
        self.mark += 1
        when = f"ada <ada@example.org> {1_770_000_000 + 60 * self.mark} +0000"
        above = [self.mark - 1] if parents is None else parents
        lines = [] if above else ["reset refs/heads/main"]
        lines += [f"commit refs/heads/main\nmark :{self.mark}\nauthor {when}\ncommitter {when}"]
        lines += [f"data {len(subject.encode())}\n{subject}"]
        lines += [f"{'merge' if at else 'from'} :{one}" for at, one in enumerate(above) if one]
        lines += ["deleteall"]
        for name, text in files.items():
            lines += [f"M 100644 inline {name}\ndata {len(text.encode())}\n{text}"]
        self.stream += "\n".join(lines).encode() + b"\n\n"
        return self.mark

    def write(self) -> list[str]:
        """Write them all, and check the last one out; their ids, from the first on."""
        marks = self.folder / ".git" / "marks"
        git(self.folder, "fast-import", "--quiet", f"--export-marks={marks}", stdin=self.stream)
        git(self.folder, "reset", "-q", "--hard", "main")
        found = dict(line.split() for line in marks.read_text().splitlines())
        return [found[f":{number}"] for number in range(1, self.mark + 1)]


def line_of(folder: Path, count: int, fault: int, broken: frozenset[int] = frozenset()) -> list[str]:
    """So many commits in a row; from ``fault`` on the loss is off, and some commits do not build."""
    history = History(folder)
    for at in range(count):
        text = BROKEN if at in broken else loss(at >= fault)
        history.add({"train.py": TRAINER, "loss.py": text, "version": f"{at}\n"}, f"Change {at}")
    return history.write()


def record(folder: Path, revision: str, tape: Path, **environ: str) -> None:
    """Record a tape with the code of a revision."""
    code = tape.parent / f"code-{revision[:8]}"
    git(folder, "worktree", "add", "-q", "--detach", str(code), revision)
    steered = environment(ROLLTAPE_MODE="record", ROLLTAPE_DIR=str(tape), **environ)
    subprocess.run([sys.executable, "train.py"], cwd=code, env=steered, check=True, capture_output=True)
    git(folder, "worktree", "remove", "--force", str(code))


SCRIPT = """
read kind < kind
printf '%s\\n' "$kind" >> "${COUNTER:-/dev/null}"
case "$kind" in
clean|diverges) cp -R "$TAPES/$kind" "$ROLLTAPE_OUT" ;;
flaky) if test -e "$TAPES/once"; then cp -R "$TAPES/diverges" "$ROLLTAPE_OUT"
       else touch "$TAPES/once"; cp -R "$TAPES/clean" "$ROLLTAPE_OUT"; fi ;;
broken) echo "no such module: flash"; exit 1 ;;
skip) exit 125 ;;
crash) cp -R "$TAPES/clean" "$ROLLTAPE_OUT"; exit 3 ;;
killed) kill -9 $$ ;;
slow) sleep 600 ;;
nothing) exit 0 ;;
newer) mkdir "$ROLLTAPE_OUT"; echo '{"format": 99}' > "$ROLLTAPE_OUT/tape.json" ;;
damaged) mkdir "$ROLLTAPE_OUT"; echo '{}' > "$ROLLTAPE_OUT/tape.json" ;;
esac
"""
"""A trainer that is quick: what a replay of it writes was written before, and is copied."""


def quick(folder: Path, kinds: list[str]) -> list[str]:
    """A repository whose commits replay like this, in a row."""
    history = History(folder)
    for at, kind in enumerate(kinds):
        history.add({"train.sh": SCRIPT, "kind": f"{kind}\n", "sub/at": f"{at}\n"}, f"Change {at}")
    return history.write()


def make_tapes(folder: Path) -> None:
    """A recording ``base``, and what a replay writes that is clean, and one that diverges."""
    folder.mkdir()
    for name, factor in (("base", 1.0), ("clean", 1.0), ("diverges", 1.5)):
        second = {} if name == "base" else {"out": folder / name}
        mode = "replay" if second else "record"
        with rolltape.Tape(folder / "base", mode=mode, **second) as tape:
            generate = tape.stage("rollout")(lambda: {"uid": ["a"], "responses": np.arange(3)[None]})
            loss = tape.stage("loss", replay=False)(lambda batch, by: batch["responses"] * np.float32(by))
            with tape.step(0):
                loss(generate(), factor)
