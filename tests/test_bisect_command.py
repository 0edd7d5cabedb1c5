"""`rolltape bisect` on real repositories: what it finds, what it says, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bisecting import (
    ROOT,
    SCRIPT,
    History,
    environment,
    git,
    line_of,
    make_tapes,
    quick,
    record,
)
from tests.cli_tapes import command, in_terminal, run

SCRIPTED = ("--", "sh", "train.sh")


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with tapes, and a cache of its own."""
    make_tapes(tmp_path / "tapes")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TAPES", str(tmp_path / "tapes"))
    monkeypatch.setenv("COUNTER", str(tmp_path / "counter"))
    return tmp_path


@pytest.fixture
def scripted(place, monkeypatch):
    """Makes a repository of the quick trainer, and goes there."""

    def make(*kinds: str) -> list[str]:
        ids = quick(place / "repo", list(kinds))
        monkeypatch.chdir(place / "repo")
        return ids

    return make


def bisect(*words: object, tape: str = "../tapes/base", expect: int = 1) -> dict:
    done = run("bisect", tape, "--json", *words)
    assert done.exit_code == expect, done.output + done.stderr
    return json.loads(done.stdout)


def ran(place: Path) -> list[str]:
    """The trials that were really run since this was last asked."""
    counter = place / "counter"
    lines = counter.read_text().split() if counter.exists() else []
    counter.unlink(missing_ok=True)
    return lines


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- the fault among sixty-four ----------------------------------------------------------------------------


def test_one_of_sixty_four_commits_in_six_replays_and_the_users_tree_is_untouched(place, monkeypatch):
    repo = place / "repo"
    ids = line_of(repo, 64, fault=41)
    record(repo, ids[0], place / "tape")
    ran(place)
    (repo / "loss.py").write_text("put away\n")
    git(repo, "stash")
    (repo / "loss.py").write_text("half an edit\n")
    (repo / "version").write_text("staged\n")
    git(repo, "add", "version")
    (repo / "notes.txt").write_text("mine\n")
    before, refs = listing(repo), git(repo, "for-each-ref")
    assert "refs/stash" in refs
    monkeypatch.chdir(repo)
    found = bisect("--good", ids[0], "--bad", "main", "--", sys.executable, "train.py", tape="../tape")
    assert found["commit"]["id"] == ids[41]
    assert found["commit"]["subject"] == "Change 41"
    assert "1.001" in found["diff"]
    assert found["divergence"]["path"] == "loss/token_losses"
    assert found["divergence"]["step"] == 0
    assert len(ran(place)) == len(found["trials"]) <= 2 + 6
    after = listing(repo)
    assert git(repo, "for-each-ref") == refs
    packed = after.pop(".git/packed-refs", b"")  # git's bisect writes this file anew, with the same refs
    assert not [line for line in packed.splitlines() if not line.startswith(b"#")]
    assert after == before, "files, index, HEAD, refs, stash and what git keeps of working trees"
    assert not list((place / "cache/rolltape/bisect").rglob("train.py"))

    again = bisect("--good", ids[0], "--bad", "main", "--", sys.executable, "train.py", tape="../tape")
    assert again["commit"] == found["commit"]
    assert ran(place) == [], "everything was known"
    assert all(one["cached"] for one in again["trials"])


def test_with_commits_that_do_not_build_and_a_noise_floor(place, monkeypatch):
    repo = place / "repo"
    broken = frozenset({31, 32, 33, 15, 47, 20})
    ids = line_of(repo, 64, fault=22, broken=broken)
    monkeypatch.setenv("NOISE", "1e-5")
    record(repo, ids[0], place / "tape")
    git(repo, "checkout", "-q", ids[0])
    monkeypatch.chdir(repo)
    done = run("noise", "../tape", "--runs", 3, "--", sys.executable, "train.py")
    assert done.exit_code == 0, done.stderr
    gate = place / "gate.json"
    gate.write_text('{"rules": [{"match": "*", "floor": 20}]}')
    monkeypatch.chdir(repo)
    words = ["--good", ids[0], "--bad", ids[63], "--gate", gate, "--", sys.executable, "train.py"]
    found = bisect(*words, tape="../tape")
    assert found["commit"]["id"] == ids[22]
    answers = [one for one in found["trials"] if one["outcome"] != "skipped"]
    skipped = [one for one in found["trials"] if one["outcome"] == "skipped"]
    assert len(answers) <= 2 + 6
    assert skipped
    assert all("before the first step" in one["why"] for one in skipped)
    assert all("a_module_that_there_is_not" in one["output"] for one in skipped)


def test_killed_in_the_middle_and_started_again(place, monkeypatch):
    repo = place / "repo"
    ids = line_of(repo, 64, fault=50)
    record(repo, ids[0], place / "tape")
    ran(place)
    monkeypatch.chdir(repo)
    words = [
        "bisect",
        "../tape",
        "--json",
        "--good",
        ids[0],
        "--bad",
        ids[63],
        "--",
        sys.executable,
        "train.py",
    ]
    for trials in (1, 3, 6):  # killed as soon as so many have begun
        process = subprocess.Popen(command(*words), stdout=subprocess.DEVNULL)
        while process.poll() is None and len(counted(place)) < trials:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    begun = ran(place)
    assert len(begun) >= 6
    found = bisect(*words[3:], tape="../tape")
    assert found["commit"]["id"] == ids[50]
    assert len(set(begun) | set(ran(place))) <= 2 + 6, "no other commit than without the kills"
    assert any(one["cached"] for one in found["trials"])
    deadline = time.monotonic() + 30
    while git(repo, "worktree", "list").count("\n") and time.monotonic() < deadline:
        bisect(*words[3:], tape="../tape")  # the last command of a killed search may still hold its tree
    assert git(repo, "worktree", "list").count("\n") == 0
    assert "refs/bisect" not in git(repo, "for-each-ref")


def counted(place: Path) -> list[str]:
    counter = place / "counter"
    return counter.read_text().split() if counter.exists() else []


# -- what a trial means ------------------------------------------------------------------------------------


def test_what_cannot_be_told_is_skipped_and_said(scripted, place):
    ids = scripted("clean", "clean", "skip", "slow", "broken", "killed", "nothing", "diverges", "diverges")
    found = bisect("--good", ids[0], "--bad", ids[8], "--timeout", 1, *SCRIPTED)
    assert found["commit"] is None
    assert [one["id"] for one in found["candidates"]] == ids[7:1:-1]
    whys = {one["commit"]: one["why"] for one in found["trials"]}
    assert "exit code 125" in whys[ids[2]]
    assert whys[ids[3]] == "not done after 1.0 s"
    assert "exit code 1 before the first step was recorded" in whys[ids[4]]
    assert "signal 9 (SIGKILL)" in whys[ids[5]]
    assert "replayed nothing" in whys[ids[6]]
    ran(place)
    bisect("--good", ids[0], "--bad", ids[8], "--timeout", 1, *SCRIPTED)
    assert ran(place) == ["killed"], "what somebody ended is run again, and nothing else"
    shown = run("bisect", "../tapes/base", "--good", ids[0], "--bad", ids[8], "--timeout", 1, *SCRIPTED)
    assert "One of 6 commits is the first that diverges" in shown.stdout
    assert shown.stderr == "", "quiet where nobody watches"


@pytest.mark.parametrize("kind", ["newer", "damaged"])
def test_a_tape_that_cannot_be_read_is_skipped(scripted, kind):
    ids = scripted("clean", kind, "diverges")
    found = bisect("--good", ids[0], "--bad", ids[2], *SCRIPTED)
    assert [one["id"] for one in found["candidates"]] == [ids[2], ids[1]]
    assert found["trials"][2]["why"].startswith("what it recorded cannot be read: ")


def test_what_is_in_the_cache_and_not_ours_is_run_again(scripted, place):
    ids = scripted("clean", "diverges")
    found = bisect("--good", ids[0], "--bad", ids[1], *SCRIPTED)
    ran(place)
    for text in (json.dumps({"outcome": "clean", "why": "", "causes": [], "findings": [], "limit": "x"}),
                 "[" * 100_000, "{}"):  # fmt: skip
        for file in (place / "cache/rolltape/bisect/results").iterdir():
            file.write_text(text)
        assert bisect("--good", ids[0], "--bad", ids[1], *SCRIPTED)["commit"] == found["commit"]
        assert ran(place) == ["clean", "diverges"]


def test_a_longer_time_limit_runs_again_what_took_too_long(scripted, place):
    ids = scripted("clean", "slow", "diverges")
    bisect("--good", ids[0], "--bad", ids[2], "--timeout", 0.5, *SCRIPTED)
    ran(place)
    bisect("--good", ids[0], "--bad", ids[2], "--timeout", 0.4, *SCRIPTED)
    assert ran(place) == []
    bisect("--good", ids[0], "--bad", ids[2], "--timeout", 0.6, *SCRIPTED)
    assert ran(place) == ["slow"]


def test_a_replay_that_breaks_off_after_its_first_step_diverges(scripted):
    ids = scripted("clean", "clean", "crash", "crash")
    found = bisect("--good", ids[0], "--bad", ids[3], *SCRIPTED)
    assert found["commit"]["id"] == ids[2]
    assert found["divergence"]["why"] == "it broke off with exit code 3"


def test_a_commit_with_files_that_were_tried_before_is_not_run(scripted, place):
    ids = scripted("clean", "diverges")
    history = [*ids]
    git(place / "repo", "revert", "--no-edit", ids[1])
    git(place / "repo", "revert", "--no-edit", "HEAD")
    found = bisect("--good", history[0], "--bad", "HEAD", *SCRIPTED)
    assert len(found["trials"]) >= 3
    assert sorted(ran(place)) == ["clean", "diverges"], "one run for each set of files"


def test_repeat_finds_what_diverges_only_at_times(scripted, place):
    ids = scripted("clean", "flaky", "diverges")
    found = bisect("--good", ids[0], "--bad", ids[2], "--repeat", 2, *SCRIPTED)
    assert found["commit"]["id"] == ids[1]
    assert found["divergence"]["why"].endswith("(flaky: only in run 2)")
    assert ran(place) == ["clean", "clean", "diverges", "flaky", "flaky"]


def test_fresh_runs_again_and_says_where_the_answer_is_another(scripted, place):
    ids = scripted("clean", "flaky", "diverges")
    assert bisect("--good", ids[0], "--bad", ids[2], *SCRIPTED)["commit"]["id"] == ids[2]
    ran(place)
    done = run("bisect", "../tapes/base", "--fresh", "--good", ids[0], "--bad", ids[2], *SCRIPTED)
    assert ids[1] in done.stdout
    assert "flaky: " in done.stderr
    assert ": diverges now, clean in an earlier run" in done.stderr
    assert len(ran(place)) == 3


def test_the_tapes_of_the_runs_can_be_kept(scripted, place):
    ids = scripted("clean", "clean", "diverges")
    first = bisect("--good", ids[0], "--bad", ids[2], *SCRIPTED)
    assert first["divergence"]["tape"] is None
    found = bisect("--good", ids[0], "--bad", ids[2], "--keep", "../kept", *SCRIPTED)
    assert found["divergence"]["tape"] == str(place / "kept" / ids[2][:12])
    done = run("diff", "../tapes/base", found["divergence"]["tape"])
    assert done.exit_code == 1
    assert done.stdout.splitlines()[0] == found["divergence"]["why"]
    ran(place)
    bisect("--good", ids[0], "--bad", ids[2], "--keep", "../kept", *SCRIPTED)
    assert ran(place) == []


# -- both ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "code", "said"),
    [
        (("diverges", "diverges"), 2, "good is not clean"),
        (("clean", "clean"), 2, "bad is clean"),
        (("broken", "diverges"), 2, "no such module: flash"),
        (("clean", "broken"), 2, "bad cannot be told"),
        (("nothing", "diverges"), 3, "replayed nothing"),
        (("clean", "nothing"), 3, "replayed nothing"),
    ],
)
def test_ends_that_are_not_what_they_are_said_to_be(scripted, place, kinds, code, said):
    ids = scripted(*kinds)
    done = run("bisect", "../tapes/base", "--good", ids[0], "--bad", ids[1], *SCRIPTED)
    assert done.exit_code == code
    assert said in done.stderr
    assert git(place / "repo", "worktree", "list").count("\n") == 0


def test_an_end_that_did_not_run_is_tried_again(scripted, place):
    ids = scripted("clean", "clean", "diverges")
    words = ["--good", ids[0], "--bad", ids[2], "--", "sh", "-c", f"test -e {place}/lib && exec sh train.sh"]
    bisect(*words, expect=2)
    (place / "lib").touch()
    assert bisect(*words)["commit"]["id"] == ids[2]


def test_a_command_that_there_is_not(scripted):
    ids = scripted("clean", "diverges")
    done = run("bisect", "../tapes/base", "--good", ids[0], "--bad", ids[1], "--", "no-such-command")
    assert done.exit_code == 2
    assert "no-such-command cannot be started: No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("main", "main~1", "good comes after bad"),
        ("main", "main", "the same commit"),
        ("nowhere", "main", "there is no commit 'nowhere'"),
        ("--upload-pack=touch owned", "main", "is not a revision"),
        ("main~1", "", "is not a revision"),
        ("main:kind", "main", "there is no commit"),
        ("^main~1", "main", "there is no commit"),
        (":/No such subject", "main", "there is no commit"),
    ],
)
def test_revisions_that_cannot_be(scripted, place, good, bad, said):
    scripted("clean", "diverges")
    done = run("bisect", "../tapes/base", f"--good={good}", f"--bad={bad}", *SCRIPTED)
    assert done.exit_code == 2
    assert said in done.stderr
    assert ran(place) == []
    assert not (place / "repo/owned").exists()


def test_a_revision_by_its_subject(scripted):
    ids = scripted("clean", "diverges")
    assert bisect("--good", ":/Change 0", "--bad", ":/Change 1", *SCRIPTED)["commit"]["id"] == ids[1]


def test_hostile_names_of_branches(scripted, place):
    ids = scripted("clean", "clean", "diverges")
    git(place / "repo", "update-ref", "refs/heads/-f", ids[0])
    git(place / "repo", "update-ref", "refs/heads/$(touch${IFS}owned);x", ids[2])
    found = bisect("--good", "refs/heads/-f", "--bad", "$(touch${IFS}owned);x", *SCRIPTED)
    assert found["commit"]["id"] == ids[2]
    assert not (place / "repo/owned").exists()


def test_outside_of_a_repository(place, monkeypatch):
    monkeypatch.chdir(place)
    done = run("bisect", "tapes/base", "--good", "a", "--bad", "b", *SCRIPTED)
    assert done.exit_code == 2
    assert "not a git repository" in done.stderr


def test_a_run_that_is_not_there(scripted):
    ids = scripted("clean", "diverges")
    done = run("bisect", "../tapes/none", "--good", ids[0], "--bad", ids[1], *SCRIPTED)
    assert done.exit_code == 2
    assert "no tape" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give --good and --bad, or --flags A B, or --set"),
        (("--good", "a"), "go together"),
        (("--good", "a", "--bad", "b", "--set", "x=1"), "give --good and --bad, or"),
        (("--flags", "a.json", "b.json"), "does not say where the configuration goes"),
    ],
)
def test_usage(place, words, said):
    done = run("bisect", place / "tapes/base", *words, "--", "true")
    assert done.exit_code == 2
    assert said in done.stderr


# -- repositories of all kinds -----------------------------------------------------------------------------


def test_from_a_subdirectory_the_command_runs_there(scripted, place, monkeypatch):
    ids = scripted("clean", "clean", "diverges")
    monkeypatch.chdir(place / "repo/sub")
    words = ("--", "sh", "-c", "test -e at && cd .. && exec sh train.sh")
    found = bisect("--good", ids[0], "--bad", ids[2], *words, tape="../../tapes/base")
    assert found["commit"]["id"] == ids[2]


def test_what_a_hook_of_the_caller_says_is_not_heeded(scripted, place, monkeypatch):
    ids = scripted("clean", "clean", "diverges")
    index = (place / "repo/.git/index").read_bytes()
    monkeypatch.setenv("GIT_DIR", str(place / "elsewhere"))
    monkeypatch.setenv("GIT_WORK_TREE", str(place))
    monkeypatch.setenv("GIT_INDEX_FILE", str(place / "repo/.git/index"))
    words = ("--", "sh", "-c", 'test -z "$GIT_DIR$GIT_INDEX_FILE" && exec sh train.sh')
    assert bisect("--good", ids[0], "--bad", ids[2], *words)["commit"]["id"] == ids[2]
    assert (place / "repo/.git/index").read_bytes() == index


def test_hooks_of_the_repository_do_not_run(scripted, place):
    ids = scripted("clean", "clean", "diverges")
    hook = place / "repo/.git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {place}/hooked\n")
    hook.chmod(0o755)
    bisect("--good", ids[0], "--bad", ids[2], *SCRIPTED)
    assert not (place / "hooked").exists()


def test_odd_paths_linked_working_trees_and_bare_repositories(place, monkeypatch):
    odd = place / "a b\nc" / "-repo"
    ids = quick(odd, ["clean", "clean", "diverges"])
    git(odd, "worktree", "add", "-q", "--detach", str(place / "linked"), ids[2])
    git(place, "clone", "-q", "--bare", str(odd), str(place / "bare"))
    before = sorted(path.name for path in (odd / ".git/worktrees").iterdir())
    for folder in (odd, place / "linked", place / "bare"):
        monkeypatch.chdir(folder)
        words = ["--fresh", "--good", ids[0], "--bad", ids[2], *SCRIPTED]
        assert bisect(*words, tape=place / "tapes/base")["commit"]["id"] == ids[2]
    assert sorted(path.name for path in (odd / ".git/worktrees").iterdir()) == before


def test_two_searches_at_once(scripted, place):
    ids = scripted("clean", "clean", "diverges")
    words = ["bisect", "../tapes/base", "--fresh", "--good", ids[0], "--bad", ids[2], *SCRIPTED]
    both = [subprocess.Popen(command(*words), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        assert process.communicate()[0].startswith(ids[2])
        assert process.returncode == 1
    assert git(place / "repo", "worktree", "list").count("\n") == 0


def test_a_subject_is_no_command_to_the_pipeline(place, monkeypatch):
    history = History(place / "repo")
    for kind in ("clean", "diverges"):
        history.add({"train.sh": SCRIPT, "kind": f"{kind}\n", "a": "::x::1\n"}, "::error::\x1b[31m")
    ids = history.write()
    monkeypatch.chdir(place / "repo")
    done = run("bisect", "../tapes/base", "--good", ids[0], "--bad", ids[1], *SCRIPTED)
    assert r"\x3a:error::\x1b[31m" in done.stdout
    assert "\x1b" not in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.strip().startswith("::")]


def branching(place: Path, left: str, right: str, merged: str) -> list[str]:
    """Two sides of two commits each, and their merge: base, left, left, right, right, merge."""
    history = History(place / "repo")

    def files(kind: str, at: int) -> dict[str, str]:
        return {"train.sh": SCRIPT, "kind": f"{kind}\n", "at": f"{at}\n"}

    base = history.add(files("clean", 0), "Base")
    one = history.add(files("clean", 1), "Left 1", [base])
    two = history.add(files(left, 2), "Left 2", [one])
    other = history.add(files("clean", 3), "Right 1", [base])
    last = history.add(files(right, 4), "Right 2", [other])
    history.add(files(merged, 5), "Merge", [two, last])
    return history.write()


@pytest.mark.parametrize(
    ("left", "right", "culprit"), [("diverges", "clean", 2), ("clean", "diverges", 4), ("clean", "clean", 5)]
)
def test_merges(place, monkeypatch, left, right, culprit):
    ids = branching(place, left, right, "diverges")
    monkeypatch.chdir(place / "repo")
    found = bisect("--good", ids[0], "--bad", ids[5], *SCRIPTED)
    assert found["commit"]["id"] == ids[culprit]
    shown = run("bisect", "../tapes/base", "--good", ids[0], "--bad", ids[5], *SCRIPTED).stdout
    assert ("A merge: its parents are clean" in shown) == (culprit == 5)


def test_a_folder_that_is_renamed_on_the_way(place, monkeypatch):
    """The command of the last commit does not fit the first: what does not run is skipped, not blamed."""
    history = History(place / "repo")
    for at in range(12):
        folder, kind = ("old" if at < 3 else "new"), ("diverges" if at >= 8 else "clean")
        history.add({f"{folder}/train.sh": SCRIPT, "kind": f"{kind}\n", "at": f"{at}\n"}, f"Change {at}")
    ids = history.write()
    monkeypatch.chdir(place / "repo")
    (place / "repo" / "new").mkdir(exist_ok=True)
    (place / "repo" / "kind").write_text("dirty\n")  # the user's own work is neither tried nor touched
    either = ("--", "sh", "-c", "sh new/train.sh || sh old/train.sh")
    found = bisect("--good", ids[0], "--bad", ids[11], *either)
    assert found["commit"]["id"] == ids[8]
    found = bisect("--good", ids[3], "--bad", ids[11], "--", "sh", "new/train.sh")
    assert found["commit"]["id"] == ids[8]
    assert (place / "repo" / "kind").read_text() == "dirty\n"


def test_a_good_revision_that_is_not_behind_the_bad_one(place, monkeypatch):
    ids = branching(place, "diverges", "clean", "diverges")
    monkeypatch.chdir(place / "repo")
    found = bisect("--good", ids[4], "--bad", ids[2], *SCRIPTED)
    assert found["commit"]["id"] == ids[2]
    assert ids[0] in [one["commit"] for one in found["trials"]], "what both came from is tried"


def test_a_fault_that_is_older_than_both(place, monkeypatch):
    history = History(place / "repo")
    for kind, above in (("diverges", []), ("diverges", [1]), ("clean", [1])):
        history.add({"train.sh": SCRIPT, "kind": f"{kind}\n", "at": str(history.mark)}, kind, above)
    ids = history.write()
    monkeypatch.chdir(place / "repo")
    done = run("bisect", "../tapes/base", "--good", ids[2], "--bad", ids[1], *SCRIPTED)
    assert done.exit_code == 2
    assert "diverges already" in done.stderr


def test_histories_that_have_nothing_in_common(place, monkeypatch):
    history = History(place / "repo")
    for kind in ("clean", "diverges"):
        history.add({"train.sh": SCRIPT, "kind": f"{kind}\n"}, kind, [])
    ids = history.write()
    monkeypatch.chdir(place / "repo")
    done = run("bisect", "../tapes/base", "--good", ids[0], "--bad", ids[1], *SCRIPTED)
    assert done.exit_code == 2
    assert "have no commit in common" in done.stderr


def test_a_shallow_clone_with_a_detached_head_and_a_dirty_tree(scripted, place, monkeypatch):
    ids = scripted("clean", "clean", "clean", "clean", "diverges", "diverges")
    clone = place / "a shallow clone"
    git(place, "clone", "-q", "--depth", "4", f"file://{place / 'repo'}", str(clone))
    git(clone, "checkout", "-q", "--detach", ids[3])
    (clone / "kind").write_text("dirty\n")
    monkeypatch.chdir(clone)
    assert bisect("--good", ids[2], "--bad", ids[5], *SCRIPTED)["commit"]["id"] == ids[4]
    assert (git(clone, "rev-parse", "HEAD"), (clone / "kind").read_text()) == (ids[3], "dirty\n")
    done = run("bisect", "../tapes/base", "--good", ids[0], "--bad", ids[5], *SCRIPTED)
    assert done.exit_code == 2
    assert "the clone is shallow" in done.stderr
    assert "git fetch --unshallow" in done.stderr


def test_submodules_are_said(scripted, place):
    ids = scripted("clean", "diverges")
    (place / "repo/.gitmodules").write_text('[submodule "x"]\n\tpath = x\n\turl = ../x\n')
    git(place / "repo", "update-index", "--add", "--cacheinfo", f"160000,{ids[0]},x")
    git(place / "repo", "add", ".gitmodules")
    git(place / "repo", "commit", "-qm", "A submodule")
    done = run("bisect", "../tapes/base", "--good", ids[0], "--bad", "HEAD", *SCRIPTED)
    assert done.exit_code == 1
    assert "submodules are not checked out" in done.stderr
    assert git(place / "repo", "worktree", "list").count("\n") == 0


def test_files_that_a_run_leaves_behind_are_gone_in_the_next(scripted):
    ids = scripted("clean", "clean", "diverges")
    words = ("--", "sh", "-c", "test ! -e left && touch left && exec sh train.sh")
    assert bisect("--good", ids[0], "--bad", ids[2], *words)["commit"]["id"] == ids[2]


def test_asked_to_end_it_ends_the_command_and_leaves_nothing(scripted, place):
    ids = scripted("slow", "diverges")
    words = ["bisect", "../tapes/base", "--good", ids[0], "--bad", ids[1], *SCRIPTED]
    process = subprocess.Popen(command(*words), stderr=subprocess.DEVNULL)
    while not counted(place):
        time.sleep(0.01)
    process.terminate()
    assert process.wait(60) == 143
    assert git(place / "repo", "worktree", "list").count("\n") == 0
    assert not [path for path in (place / "cache/rolltape/bisect/trees").rglob("*") if path.is_file()]


def test_asked_to_end_twice_it_leaves_no_command_behind(scripted, place):
    ids = scripted("clean", "diverges")
    stubborn = f"trap '' TERM; echo $$ > {shlex.quote(str(place / 'counter'))}; while :; do sleep 0.1; done"
    words = ["bisect", "../tapes/base", "--good", ids[0], "--bad", ids[1], "--", "sh", "-c", stubborn]
    process = subprocess.Popen(command(*words), stderr=subprocess.PIPE, start_new_session=True)
    while not counted(place):
        time.sleep(0.01)
    child = int(counted(place)[0])
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)  # it waits for the command
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert git(place / "repo", "worktree", "list").count("\n") == 0


# -- flags -------------------------------------------------------------------------------------------------

CONFIGURED = """
import json, os, shutil, sys
on = {name for name, value in json.load(open(sys.argv[1])).items() if value == 1}
open(os.environ["COUNTER"], "a").write("x\\n")
if {"f1", "f5"} <= on and "f9" not in on:
    sys.exit("f1 and f5 need f9")
kind = "diverges" if {"f3", "f8"} <= on else "clean"
shutil.copytree(os.environ["TAPES"] + "/" + kind, os.environ["ROLLTAPE_OUT"])
"""


def test_two_of_twelve_flags_that_only_diverge_together(place, monkeypatch):
    monkeypatch.chdir(place)
    (place / "train.py").write_text(CONFIGURED)
    (place / "a.json").write_text(json.dumps({f"f{at}": 0 for at in range(12)} | {"kept": [1]}))
    (place / "b.json").write_text(json.dumps({f"f{at}": 1 for at in range(12)} | {"kept": [1]}))
    words = ["--flags", "a.json", "b.json", "--", sys.executable, "train.py", "{config}"]
    found = bisect(*words, tape="tapes/base")
    assert [one["text"] for one in found["flags"]] == ["f3: 0 -> 1", "f8: 0 -> 1"]
    assert found["of"] == 12
    assert not any(one["unsure"] for one in found["flags"])
    assert found["divergence"]["path"] == "loss/value"
    assert len(found["trials"]) == len(ran(place)) < 45
    assert bisect(*words, tape="tapes/base")["flags"] == found["flags"]
    assert ran(place) == []
    code, shown = in_terminal("bisect", "tapes/base", *words)
    assert code == 1
    assert "2 differences of 12 together make the replay diverge:" in shown
    assert "Without any one of them it is clean." in shown


NESTED = """
import json, os, shutil, sys
told = json.load(open(sys.argv[1]))
loss, optim = told["loss"], told["optim"]
kind = "diverges" if optim["lr"] == 2 and loss["kl"]["coef"] == 1 and loss["clip"][1] == 3 else "clean"
shutil.copytree(os.environ["TAPES"] + "/" + kind, os.environ["ROLLTAPE_OUT"])
"""


def test_three_nested_flags_that_only_diverge_together(place, monkeypatch):
    monkeypatch.chdir(place)
    (place / "train.py").write_text(NESTED)
    before = {
        "optim": {"lr": 1, "betas": [0.9, 0.99], "eps": 1e-8}, "loss": {"clip": [1, 2], "kl": {"coef": 0}},
        "data": {"shards": {"a": 1, "b": 2}, "seed": 0}, "name": "old",
    }  # fmt: skip
    after = {
        "optim": {"lr": 2, "betas": [0.9, 0.95], "eps": 1e-6}, "loss": {"clip": [2, 3], "kl": {"coef": 1}},
        "data": {"shards": {"a": 1, "c": 2}, "seed": 1}, "name": "new", "extra": {"deep": {"er": None}},
    }  # fmt: skip
    (place / "a.json").write_text(json.dumps(before))
    (place / "b.json").write_text(json.dumps(after))
    words = ["--flags", "a.json", "b.json", "--", sys.executable, "train.py", "{config}"]
    found = bisect(*words, tape="tapes/base")
    assert sorted(one["text"].split(":")[0] for one in found["flags"]) == [
        "loss.clip.1", "loss.kl.coef", "optim.lr",
    ]  # fmt: skip
    assert not any(one["unsure"] for one in found["flags"])


SWITCH = """
printf '%s\\n' "$*" >> "$COUNTER"
case " $* " in *" b=1 "*) kind=diverges ;; *" c=1 "*) exit 1 ;; *) kind=clean ;; esac
cp -R "$TAPES/$kind" "$ROLLTAPE_OUT"
"""


def test_words_of_a_command(place, monkeypatch):
    monkeypatch.chdir(place)
    (place / "train.sh").write_text(SWITCH)
    sets = [word for name in "abcde" for word in ("--set", f"{name}=1")]
    found = bisect(*sets, "--", "sh", "train.sh", "x=0", tape="tapes/base")
    assert [one["text"] for one in found["flags"]] == ["b=1"]
    lines = (place / "counter").read_text().splitlines()
    assert lines[:2] == ["x=0", "x=0 a=1 b=1 c=1 d=1 e=1"]
    found = bisect(*sets, "--", "sh", "train.sh", "{overrides}", "x=0", tape="tapes/base")
    assert (place / "counter").read_text().splitlines()[len(lines) + 1] == "a=1 b=1 c=1 d=1 e=1 x=0"


NEEDED = """
case " $* " in
*" b=2 "*"+d=true "*) kind=diverges ;;
*" b=2 "*) exit 1 ;;
*) kind=clean ;;
esac
cp -R "$TAPES/$kind" "$ROLLTAPE_OUT"
"""


def test_a_flag_without_which_the_command_fails_is_not_said_to_be_needed(place, monkeypatch):
    pytest.importorskip("yaml")
    monkeypatch.chdir(place)
    (place / "train.sh").write_text(NEEDED)
    (place / "a.yaml").write_text("a: {x: 1}\nb: 1\nc: [1, 2]\n")
    (place / "b.yaml").write_text("a: {x: 2}\nb: 2\nc: [1, 3]\nd: true\n")
    words = ["--flags", "a.yaml", "b.yaml", "--", "sh", "train.sh", "{overrides}"]
    found = bisect(*words, tape="tapes/base")
    assert [(one["override"], one["unsure"]) for one in found["flags"]] == [("b=2", False), ("+d=true", True)]
    shown = run("bisect", "tapes/base", *words).stdout
    assert "without it the command fails" in shown


def test_configurations_that_are_the_same_or_none(place, monkeypatch):
    monkeypatch.chdir(place)
    (place / "a.json").write_text('{"a": 1}')
    (place / "b.json").write_text("[1]")
    same = run("bisect", "tapes/base", "--flags", "a.json", "a.json", "--", "true", "{config}")
    assert same.exit_code == 2
    assert "are the same" in same.stderr
    wrong = run("bisect", "tapes/base", "--flags", "a.json", "b.json", "--", "true", "{config}")
    assert wrong.exit_code == 2
    assert "must be a mapping" in wrong.stderr


# -- what is shown -----------------------------------------------------------------------------------------


def test_at_eighty_columns(scripted):
    kinds = ["clean"] * 5 + ["broken"] + ["diverges"] * 4
    ids = scripted(*kinds)
    code, shown = in_terminal(
        "bisect", "../tapes/base", "--good", ids[0], "--bad", ids[9], *SCRIPTED, NO_COLOR="1"
    )
    assert code == 1
    assert "more runs" in shown or "the last run" in shown, "how many are left"
    lines = [line for part in shown.split("\n") for line in part.split("\r")]
    plain = [strip(line) for line in lines]
    assert max(map(len, plain)) <= 80, max(plain, key=len)


def strip(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)


def test_the_text_has_the_commit_the_divergence_and_the_diff(scripted):
    ids = scripted("clean", "clean", "diverges")
    shown = run("bisect", "../tapes/base", "--good", ids[0], "--bad", ids[2], *SCRIPTED).stdout
    lines = shown.splitlines()
    assert lines[0] == f"{ids[2]} is the first commit that diverges."
    assert lines[1] == "  Change 2"
    assert any(line.startswith("First divergence: step 0, stage `loss`") for line in lines)
    assert "-clean" in lines
    assert "+diverges" in lines


# -- the page ----------------------------------------------------------------------------------------------

DOCUMENTED = """
import os, shutil, sys
said = " ".join(sys.argv[1:])
if "--config" in sys.argv:
    said = open(sys.argv[sys.argv.index("--config") + 1]).read()
bad = {faulty} or "packed: true" in said or "packed=true" in said
shutil.copytree(os.environ["TAPES"] + ("/diverges" if bad else "/clean"), os.environ["ROLLTAPE_OUT"])
"""


@pytest.mark.parametrize("name", ["commits", "flags", "set"])
def test_the_commands_of_the_page(place, monkeypatch, name):
    """docs/bisect.md, as it is written."""
    pytest.importorskip("yaml")
    history = History(place / "repo")
    for at in range(6):
        history.add({"train.py": DOCUMENTED.format(faulty=at > 3), "at": str(at)}, f"Change {at}")
    ids = history.write()
    repo = place / "repo"
    git(repo, "tag", "v1.4", ids[0])
    if name != "commits":
        git(repo, "checkout", "-q", "v1.4")
    (repo / "old.yaml").write_text("lr: 1.0e-6\npacked: false\n")
    (repo / "new.yaml").write_text("lr: 2.0e-6\npacked: true\n")
    (repo / "runs").mkdir()
    (repo / "runs/base").symlink_to(place / "tapes/base")
    (place / "bin").mkdir()
    (place / "bin/python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{place}/bin:{os.environ['PATH']}")
    monkeypatch.chdir(repo)
    page = (ROOT / "docs/bisect.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"<!-- recipe: {name} -->\n```console\n\$ rolltape (.+)\n```", page)
    words = shlex.split(line)
    done = run(*words[: words.index("--")], "--json", *words[words.index("--") :])
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    if name == "commits":
        assert found["commit"]["id"] == ids[4]
    else:
        assert [one["override"] for one in found["flags"]] == ["packed=true"]
