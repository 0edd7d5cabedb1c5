"""Makes the picture of docs/bisect.md, from one real search in a terminal of 80 columns.

    PYTHONPATH=src:. python tools/record_bisect.py docs/images/bisect.svg

Runs in the environment of the core tests, whose small trainer it searches.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.bisecting import BROKEN, TRAINER, History, environment, git, loss, record
from tests.cli_tapes import in_terminal

FAULT, BROKEN_AT = 41, {32}
SUBJECTS = ["Loss: shorter names", "Docs: how to start", "Data: shuffle by seed", "Metrics: one more curve"]
COMMAND = "rolltape bisect runs/base --good v1.4 --bad main -- python train.py"


def commits(folder: Path) -> list[str]:
    """Sixty-four commits; from one on the loss is off."""
    history = History(folder)
    for at in range(64):
        text = BROKEN if at in BROKEN_AT else loss(at >= FAULT)
        subject = "Loss: scale as in the paper" if at == FAULT else SUBJECTS[at % len(SUBJECTS)]
        files = {"train.py": TRAINER, "loss.py": text, "at": f"{at - (at == FAULT)}\n"}
        history.add(files, subject)
    return history.write()


def final_lines(shown: str) -> list[str]:
    """What a terminal shows in the end: of a line that was drawn anew, its last state."""
    lines = shown.replace("\r\n", "\n").split("\n")
    return [re.sub(r"\x1b\[\?25[lh]", "", line.rpartition("\x1b[2K")[2]) for line in lines]


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        ids = commits(folder / "repo")
        (folder / "bin").mkdir()
        (folder / "bin/python").symlink_to(sys.executable)
        git(folder / "repo", "tag", "v1.4", ids[0])
        (folder / "repo/runs").mkdir()
        record(folder / "repo", ids[0], folder / "repo/runs/base")
        os.chdir(folder / "repo")
        path = f"{folder}/bin:{os.environ['PATH']}"
        os.environ.update(environment(XDG_CACHE_HOME=f"{folder}/cache", PATH=path))
        code, shown = in_terminal(*COMMAND.split()[1:])
        os.chdir("/")
    if code != 1:
        raise SystemExit(shown)
    console = Console(width=80, record=True, file=io.StringIO(), force_terminal=True)
    console.print(f"$ {COMMAND}", style="bold", markup=False, highlight=False)
    for line in final_lines(shown.rstrip()):
        console.print(Text.from_ansi(line), highlight=False)
    drawn = console.export_svg(title="rolltape bisect", unique_id="bisect")
    target.write_text(re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL), encoding="utf-8")
    print(f"wrote {target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
