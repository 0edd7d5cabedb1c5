"""A tape says which command began it and at which commit, and nothing that could be a secret."""

import json
import subprocess
import sys

import pytest

import rolltape
from rolltape.tape.program import commit_of, shown_command


def git(folder, *words):
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "code"
    (folder / "deep" / "er").mkdir(parents=True)
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


SCRIPT = """
import sys, rolltape
with rolltape.Tape(sys.argv[1], mode="record") as tape, tape.step(0):
    tape.stage("rollout")(lambda: {"uid": ["a"]})()
"""


def test_a_tape_has_the_command_and_the_commit_of_its_program(repository, tmp_path):
    script = repository / "deep" / "train.py"
    script.write_text(SCRIPT)
    words = [
        str(tmp_path / "tape"),
        "--lr",
        "1e-4",
        "--wandb-token",
        "abcd",
        "model.api_key=efgh",
        "max_tokens=5",
    ]
    subprocess.run([sys.executable, str(script), *words], check=True, cwd=tmp_path)
    run = rolltape.open(tmp_path / "tape")
    assert run.program["commit"] == git(repository, "rev-parse", "HEAD")
    assert run.program["command"].endswith("--lr 1e-4 --wandb-token '***' 'model.api_key=***' max_tokens=5")
    text = (tmp_path / "tape" / "tape.json").read_text()
    assert "abcd" not in text
    assert "efgh" not in text


def test_the_commit_is_found_wherever_git_keeps_it(repository, tmp_path):
    head = git(repository, "rev-parse", "HEAD")
    assert commit_of(repository / "deep" / "er") == head
    git(repository, "pack-refs", "--all")
    assert commit_of(repository) == head
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "other")
    git(tmp_path / "tree", "commit", "-q", "--allow-empty", "-m", "second")
    assert commit_of(tmp_path / "tree") == git(tmp_path / "tree", "rev-parse", "HEAD") != head
    git(repository, "checkout", "-q", "--detach")
    assert commit_of(repository) == head


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none", "ref: ../../../etc/passwd", "\x00\xff", "ref:"])
def test_a_strange_repository_has_no_commit(tmp_path, head):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(head)
    assert commit_of(tmp_path) is None


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["p", "--password", "x"], "p --password '***'"),
        (["p", "--hf-token=x"], "p '--hf-token=***'"),
        (["p", "trainer.auth=x"], "p 'trainer.auth=***'"),
        (["p", "--token", "--verbose"], "p --token --verbose"),
        (["p", "--tokenizer", "qwen", "max_new_tokens=7"], "p --tokenizer qwen max_new_tokens=7"),
        (["p", "see sk-abcdefghij1234"], "p 'see ***'"),
        (["p", "https://me:pw@host/x"], "p 'https://***@host/x'"),
    ],
)
def test_what_could_be_a_secret_is_left_out(given, shown):
    assert shown_command(given) == shown


def test_a_redacted_tape_does_not_say_it_and_a_cut_one_says_what_the_whole_does(tmp_path):
    with rolltape.Tape(tmp_path / "a", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"uid": ["a"]})()
    manifest = json.loads((tmp_path / "a" / "tape.json").read_text())
    manifest["program"] = {"command": "python secret.py", "commit": "0" * 40}
    (tmp_path / "a" / "tape.json").write_text(json.dumps(manifest))
    for words in (["redact", "a", "--out", "b"], ["cut", "a", "--steps", "0", "--out", "c"]):
        at = [str(tmp_path / word) if word in "abc" else word for word in words]
        subprocess.run([sys.executable, "-m", "rolltape", *at], check=True, capture_output=True)
    assert rolltape.open(tmp_path / "b").program == {}
    assert rolltape.open(tmp_path / "c").program == manifest["program"]
