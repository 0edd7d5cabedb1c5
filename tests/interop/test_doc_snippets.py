"""Every block of README.md and of the guides runs as written, or tests/snippets.py says why it cannot.

A page runs from top to bottom in a project of its own, which has what its text takes for granted: the trainer
`train.py`, the tapes `runs/base`, `runs/packed` and `backup/base`, a gate, and the names in ``GIVEN``.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pytest
import yaml

import rolltape
from rolltape.config_file import load_file
from rolltape.settings import resolve
from tests.cli_tapes import run
from tests.snippets import ELSEWHERE, NOT_CODE, NOT_RUN, PAGES, ROOT, SHELL, Snippet, snippets, why_not_run

TRAINER = Path(__file__).with_name("documented_trainer.py")
STEPS = "0,1,2,3,4,5,6,7,8,9,20,36,37,731"
REWARDS = "from rolltape.verify.rerun.formulas import grpo as advantages\n"
GATE = "rules:\n  - {match: '*', rtol: 1.0e-3}\n"

GIVEN = """
import asyncio, types
import numpy as np
import torch
import rolltape

prompts = ["2 + 2?", "3 * 3?"]
batch = {"uid": ["a", "b"], "responses": np.arange(6).reshape(2, 3), "rewards": np.array([0.0, 1.0])}
rollout = types.SimpleNamespace(uid=["a", "b"], index=[0, 0])
log_probs = [torch.zeros(3), torch.zeros(2)]
logits = torch.zeros(2, 3)
pg_loss = grad_norm = norm = loss = 0.5
step = 0
model = torch.nn.ModuleDict({"model": torch.nn.ModuleDict({"layers": torch.nn.ModuleList(
    [torch.nn.ModuleDict({"mlp": torch.nn.Linear(2, 2)})])})})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tape = rolltape.Tape("scratch", mode="auto")
def train(*args, **options): ...
def train_on(batch): return 0.5
def load(state): ...
restore = load
"""
"""What the text of every page takes for granted."""

RECORDS = re.compile(r"""runs/base", mode="record"|--mode record --dir runs/base|MODE=record""")
OUT = re.compile(r"""out="runs/packed"|OUT=runs/packed""")
"""What a block says that records the tapes it speaks of, or writes what a replay computed."""

APART = ("docs/determinism.md",)
"""Pages that change the process they run in."""

BEFORE = {
    "async def one(prompt):": """
tape = rolltape.Tape("runs/async", mode="record")
prompts = [types.SimpleNamespace(uid=uid) for uid in "abc"]
@tape.stage("rollout")
async def generate(prompt): return {"uid": prompt.uid, "responses": [1, 2]}
""",
    "rolltape.register_adapter(MyBatch)  # a dataclass defined elsewhere": """
import dataclasses
@dataclasses.dataclass
class MyBatch: x: int
class Money:
    def __init__(self, cents): self.cents = cents
""",
    'with rolltape.serve("runs/agent"': """
from tests.interop.documented_engine import engine, run_agent
""",
    'pool = rolltape.pool("runs/math"': """
math = rolltape.Tape("runs/math", mode="record")
with math.step(0):
    math.stage("rollout")(lambda: {
        "uid": list("aabb"), "prompt_ids": [[1], [1], [2], [2]], "response_ids": [[3], [4, 5], [6], [7]],
        "logprobs": [np.full(n, -0.5) for n in (1, 2, 1, 1)], "reward": [0.0, 1.0, 0.0, 0.0],
        "finish_reason": ["stop"] * 4})()
math.close()
""",
    "tape.probe(": "inside = tape.step(0); inside.__enter__()",
    'datasets.load_dataset("parquet", data_dir="OUT")': """
import duckdb, pandas
from tests.cli_tapes import run as command
assert command("export", "runs/base", "--to", "OUT", "--format", "parquet").exit_code == 0
datasets = types.SimpleNamespace(load_dataset=lambda kind, data_dir: pandas.read_parquet(data_dir))
""",
}
"""What the text around one block takes for granted, by what the block begins with."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """A project with tapes, to be copied for each page."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(TRAINER, folder / "train.py")
    (folder / "mine").mkdir()
    (folder / "mine/rewards.py").write_text(REWARDS)
    (folder / "gate.yaml").write_text(GATE)
    (folder / "bin").mkdir()
    for name, words in (("python", ""), ("rolltape", " -m rolltape")):
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{words} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    for settings in ({"MODE": "record", "DIR": "runs/base"},
                     {"MODE": "replay", "DIR": "runs/base", "OUT": "runs/packed"}):  # fmt: skip
        environ = {f"ROLLTAPE_{name}": value for name, value in settings.items()}
        subprocess.run(
            [sys.executable, "train.py"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environ, "STEPS": STEPS},
            check=True,
        )
    shutil.copytree(folder / "runs/base", folder / "backup/base")
    return folder


@pytest.fixture
def project(prepared, tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "project"
    shutil.copytree(prepared, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{folder}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("STEPS", STEPS)
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE])
def test_a_page_runs_as_it_is_written(page, project, prepared, monkeypatch):
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # where its classes are looked for
    names = vars(module)
    exec(GIVEN, names)
    for snippet in snippets(page):
        if snippet.language in NOT_CODE or why_not_run(page, snippet.first.removeprefix("$ ")):
            continue
        try:
            for tape in tapes(names):
                tape.flush()
            lay_out(prepared, snippet)
            execute(snippet, names)
        except Exception as error:
            raise AssertionError(f"{snippet.where}: {type(error).__name__}: {error}") from error
    for tape in tapes(names):
        tape.close()


def tapes(names: dict[str, Any]) -> list[rolltape.Tape]:
    return [value for value in names.values() if isinstance(value, rolltape.Tape)]


ON_THEIR_OWN_TAPE = ("docs/reading-with-other-tools.md",)
"""Pages whose commands are about the tape that their first block records."""


def lay_out(prepared: Path, snippet: Snippet) -> None:
    """Put the tapes there that a block speaks of, except those that it writes itself."""
    records, replays = RECORDS.search(snippet.text), OUT.search(snippet.text)
    if records or (snippet.language in SHELL and snippet.page not in ON_THEIR_OWN_TAPE):
        shutil.rmtree("runs", ignore_errors=True)
        if not records:
            shutil.copytree(prepared / "runs", "runs")
    if replays:
        shutil.rmtree("runs/packed", ignore_errors=True)


def execute(snippet: Snippet, names: dict[str, Any]) -> None:
    """Run one block."""
    if snippet.language in SHELL:
        for command in snippet.commands:
            if why_not_run(snippet.page, command) is None:
                in_shell(command)
    elif snippet.language == "python":
        setup = next((code for begins, code in BEFORE.items() if snippet.text.startswith(begins)), "")
        if snippet.page in APART:
            in_shell(f"python -c {shlex.quote(snippet.text)}")
            return
        exec(setup, names)
        code = compile(snippet.text, snippet.where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        found = eval(code, names)
        if found is not None:  # the block awaits
            asyncio.run(found)
    elif snippet.language == "sql":
        names.setdefault("rows", []).append(duckdb.sql(snippet.text).fetchall())
    elif snippet.language == "yaml":
        found = yaml.safe_load(snippet.text)
        if "rolltape" in found:
            resolve({}, {}, load_file(found))
    else:
        toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        {"json": json.loads, "toml": toml.loads}[snippet.language](snippet.text)


def in_shell(command: str) -> None:
    """Run one command: one of ours in this process, which is quicker, everything else in a shell."""
    words = shlex.split(command)
    if words[0] == "rolltape" and words[1] != "run" and not {"&&", "|", ";", ">"} & set(words):
        done = run(*words[1:])
        code, said = done.exit_code, done.output
    else:
        shell = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        code, said = shell.returncode, shell.stdout + shell.stderr
    assert code == 0, f"{command}: exit code {code}\n{said}"


def test_queries_of_other_tools_find_what_was_recorded(project, capsys):
    """docs/reading-with-other-tools.md: not only do its blocks run, their answers are right."""
    shutil.rmtree("runs/base")
    names: dict[str, Any] = {"__name__": "page"}
    printed = []
    for snippet in snippets("docs/reading-with-other-tools.md"):
        if why_not_run(snippet.page, snippet.first):
            continue
        execute(snippet, names)
        if snippet.language == "python":
            printed.append(capsys.readouterr().out)
    rows = names["rows"]
    assert [len(found) for found in rows] == [2, 6, 16, 3, 4, 4]
    assert rows[0] == [("a", 6, 4.0, 0.5), ("b", 6, 4.0, 1.0)]
    assert rows[1][0] == (0, "2 + 2?", 1.0)
    assert all(token > 0 and log_prob < 0 for _, _, token, log_prob in rows[2])
    assert rows[3] == [(0, 0.75, 1.5), (1, 0.75, 2.5), (2, 0.75, 3.5)]
    assert rows[5] == [(step, uid, 1.0) for step in (1, 2) for uid in "ab"]
    assert not printed[0], "recording is silent"
    assert len(printed) == 5
    assert all(printed[1:])
    assert max(map(len, "".join(printed).splitlines())) < 400, "nobody wants to see kilobytes of base64"


def test_the_five_lines_of_the_readme_are_steered_by_run(project):
    """The README's own trainer, with its own commands: recorded, then replayed without a live call."""
    code = next(snippet for snippet in snippets("README.md") if snippet.language == "python")
    body = code.text.replace(
        "def generate(prompts): ...", "def generate(prompts):\n    print('live')\n    return prompts"
    )
    given = "prompts = ['a', 'b']\npg_loss = grad_norm = 0.5\n"
    (project / "train.py").write_text(given + body)
    shutil.rmtree("runs")
    commands = [
        command
        for snippet in snippets("README.md")
        if snippet.language in SHELL
        for command in snippet.commands
        if command.startswith("rolltape run")
    ]
    assert ["--mode record" in command for command in commands] == [True, False]
    live = [subprocess.run(["bash", "-c", command], capture_output=True, text=True) for command in commands]
    assert [done.returncode for done in live] == [0, 0], live[-1].stderr
    assert [done.stdout.count("live") for done in live] == [50, 0]


def test_every_block_says_what_it_is():
    known = {*SHELL, *NOT_CODE, "python", "sql", "yaml", "json", "toml"}
    for page in PAGES:
        for snippet in snippets(page):
            assert snippet.language in known, f"{snippet.where}: what is a block of {snippet.language!r}?"


def test_what_is_not_run_is_still_there():
    """A reason whose block is gone is taken out of the list."""
    texts = {
        page: [
            text
            for snippet in snippets(page)
            for text in (snippet.first.removeprefix("$ "), *snippet.commands)
        ]
        for page in PAGES
    }
    for page, begins in NOT_RUN:
        assert any(text.startswith(begins) for text in texts[page]), f"{page} has no {begins!r} any more"


def test_pages_that_run_elsewhere_are_named_there():
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(), f"{test} does not speak of {page}"
        for snippet in snippets(page):
            ours = snippet.language in ("python", *NOT_CODE) or "<!-- recipe:" in (ROOT / page).read_text()
            assert ours or why_not_run(page, snippet.first), f"{snippet.where} is run nowhere"
