"""The code blocks of README.md and docs/*.md, one by one, and those that no test can run as written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]

SHELL = ("bash", "console")
"""Languages of blocks that are commands; in ``console`` those behind ``$``, the rest is what they print."""

NOT_CODE = ("text",)
"""Output, diagrams, synopses. The help texts among them are compared by tests/test_cli_help.py."""

_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Snippet:
    """One block."""

    page: str
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def first(self) -> str:
        """Its first line of code, by which it is known here."""
        return next((line for line in self.text.splitlines() if line.strip()), "")

    @property
    def commands(self) -> list[str]:
        """The commands of a block for a shell, each after the variables that its comment sets."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        found = []
        for line in lines:
            command, _, comment = re.sub(r"(^|\s+)#\s", "\0", line).partition("\0")
            variables = re.findall(r"ROLLTAPE_\w+=\S+", comment)
            found += [" ".join([*variables, command.strip()])] if command.strip() else []
        return found


def snippets(page: str) -> list[Snippet]:
    """The blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        indent = len(match["indent"])
        body = "".join(line[indent:] if line.strip() else line for line in match["text"].splitlines(True))
        found.append(Snippet(page, text[: match.start()].count("\n") + 1, match["language"], body))
    return found


ELSEWHERE = {
    "docs/bisect.md": "tests/test_bisect_command.py",
    "docs/ci.md": "tests/test_verify_noise.py",
    "docs/engines-servers.md": "tests/engines/test_rollout_docs.py",
    "docs/generation.md": "tests/engines/test_rollout_docs.py",
    "docs/log-probs.md": "tests/engines/test_rollout_docs.py",
    "docs/ray.md": "tests/store/test_ray_data.py",
}
"""Pages whose blocks another test runs as written, with what they take for granted."""

NETWORK = (
    "it installs from a package index or a repository; tests/test_packaging.py builds and looks at the wheel"
)
TRUST = "it is about a replay with another learning rate; tests/trl/test_trust.py trains such a one"
SERVES = "it serves pages until it is interrupted; tests/viewer drives the same command in a browser"
SERVE = "it serves until it is interrupted, and needs an engine; tests/serve runs the same command"
VERL = "it needs verl, and the … are the reader's own options; tests/verl runs verl's real trainer under it"
BUCKET = "it needs a bucket; tests/store does the same on a real S3 server"
ENGINE = "it needs a server or a GPU with a large model; tests/engines runs the same calls on small ones"

NOT_RUN: dict[tuple[str, str], str] = {
    ("README.md", "pip install"): NETWORK,
    ("README.md", "make demo"): "it trains for a minute; tests/trl/test_demo.py runs the demo",
    ("README.md", "make test"): "it is what runs this test",
    (
        "README.md",
        "rolltape run",
    ): "it is run with the five lines as train.py, in tests/interop/test_doc_snippets.py",
    ("README.md", "rolltape view"): SERVES,
    ("docs/ci.md", "jobs:"): "a workflow of GitHub; its commands are those of the recipe, which a test runs",
    (
        "docs/cli.md",
        "rolltape bisect",
    ): "it needs a repository with a fault in it; tests/test_bisect_command.py has some",
    ("docs/cli.md", "rolltape view runs/base"): SERVES,
    ("docs/cli.md", "rolltape trust"): TRUST,
    ("docs/cli.md", "rolltape score"): "it needs the weights of a model; tests/trl/test_score.py has some",
    (
        "docs/speed.md",
        "recording = next",
    ): "it is about a padded batch of verl's kind; tests/test_jagged.py has such",
    ("docs/trust.md", "rolltape trust"): TRUST,
    ("docs/trust.md", "from rolltape.trusting import Meter"): TRUST,
    ("docs/trust.md", "found = rolltape.trust"): TRUST,
    ("docs/cli.md", "rolltape check runs/base && rolltape push"): BUCKET,
    ("docs/cli.md", "rolltape push"): BUCKET,
    ("docs/cli.md", "rolltape pull"): BUCKET,
    ("docs/cli.md", "rolltape sync"): BUCKET,
    ("docs/cli.md", "rolltape run --mode record"): VERL,
    ("docs/cli.md", "rolltape run --mode replay"): VERL,
    ("docs/cli.md", "rolltape serve"): SERVE,
    (
        "docs/compact.md",
        "SELECT avg(reward)",
    ): "what is younger than a minute is in no segment; tests/interop/test_segments_are_read_elsewhere.py",
    ("docs/engines-servers.md", "from rolltape.engines import SamplingParams, VLLMEngine"): ENGINE,
    (
        "docs/engines-servers.md",
        "import ray",
    ): "it needs a Ray cluster with 8 GPUs; tests/engines has one of CPUs",
    ("docs/generation.md", "pip install"): NETWORK,
    (
        "docs/metrics.md",
        "import rolltape",
    ): "it needs W&B and TensorBoard; tests/trl/test_loggers.py has both",
    ("docs/pools.md", "python -m"): "it trains for a minute; tests/trl/test_pool_training.py does the same",
    ("docs/pools.md", "rolltape filter s3"): BUCKET,
    ("docs/ray.md", "pip install"): NETWORK,
    (
        "docs/reading-with-other-tools.md",
        "from pathlib import Path",
    ): "it needs Ray; tests/store/test_ray_data.py runs it on a folded tape",
    ("docs/ray.md", "rolltape diff"): "it needs Ray; tests/store/test_ray_spread.py runs these commands",
    (
        "docs/roll.md",
        "# at the top of",
    ): "it needs ROLL; tests/test_roll_schedulers.py installs into its schedulers",
    ("docs/serve.md", "pip install"): NETWORK,
    ("docs/serve.md", "rolltape serve"): SERVE,
    (
        "docs/slime.md",
        "rolltape run",
    ): "it needs slime; tests/test_slime_functions.py calls the same function",
    ("docs/stores.md", "pip install"): NETWORK,
    ("docs/stores.md", "rolltape run"): BUCKET,
    ("docs/stores.md", "rolltape ls"): BUCKET,
    ("docs/trl.md", "pip install"): NETWORK,
    ("docs/trl.md", "import rolltape"): "it needs TRL and a model; tests/trl/test_replay.py does the same",
    ("docs/trl.md", "from rolltape.integrations.trl import install"): "it needs TRL; tests/trl/test_vllm.py",
    ("docs/trl.md", "rolltape run"): "it needs TRL and a model; tests/trl/test_run_command.py does the same",
    (
        "docs/verify.md",
        "from rolltape.pytest_plugin",
    ): "a suite's own; tests/test_verify_pytest_plugin.py has one",
    ("docs/verl.md", "pip install"): NETWORK,
    ("docs/verl.md", "rolltape run"): VERL,
    ("docs/verl.md", "critic."): "options of verl's command line, not a command",
    ("docs/verl.md", "ROLLTAPE_VERL_REWARD"): VERL,
    ("docs/verl.md", "rolltape ls /tapes/base"): "the tape of the run above it",
    ("docs/verl.md", "from rolltape.integrations.verl import RolloutSkip"): VERL,
    ("docs/verl.md", "from rolltape.integrations.verl import read_dumped_data"): VERL,
    ("docs/viewer.md", "pip install"): NETWORK,
    ("docs/viewer.md", "rolltape view runs/base"): SERVES,
    ("docs/viewer.md", "ssh -L"): "it needs a cluster to log in to",
    (
        "docs/viewer.md",
        "rolltape browse",
    ): "it takes over the terminal; tests/viewer/test_terminal.py drives it",
    ("docs/your-own-trainer.md", "engine = tape.engine("): ENGINE,
}
"""(page, what a block or a command begins with) -> why no test runs it as written."""


def why_not_run(page: str, text: str) -> str | None:
    """Why a block or a command of a page is not run; None if it is to be."""
    for (where, begins), reason in NOT_RUN.items():
        if where == page and text.startswith(begins):
            return reason
    return None
