"""What the command line says to a first user's mistakes: the right thing, and to programs, too."""

import json
import os
import subprocess
import sys

import pytest

import rolltape
from rolltape.cli.app import COMMANDS, OTHER_WORDS
from rolltape.cli.commands.run import complaint
from tests.cli_tapes import in_process, record, rollout, run
from tests.taping import batch_of

# -- commands that there are not ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("lss", "ls"), ("sho", "show"), ("chek", "check"), ("dif", "diff"), ("exprot", "export"), ("list", "ls"),
     ("replay", "run --mode replay"), ("compare", "diff"), ("fix", "repair"), ("LS", "ls"),
     ("help", "--help")],
)  # fmt: skip
def test_an_unknown_command_is_answered_with_the_one_that_was_meant(typed, meant):
    done = run(typed, "x")
    assert done.exit_code == 2
    assert f"there is no command {typed!r}; did you mean `rolltape {meant}`?" in done.stderr


def test_what_is_like_no_command_gets_no_wrong_suggestion():
    done = run("zzzzqqq")
    assert done.exit_code == 2
    assert "did you mean" not in done.stderr


def test_every_other_word_leads_to_a_command():
    for word, meant in OTHER_WORDS.items():
        assert word not in COMMANDS
        assert meant.split()[0] in (*COMMANDS, "--help", "--version")


# -- errors for programs -----------------------------------------------------------------------------------

WRONG = [
    (["ls", "/nowhere", "--json"], 2, "TapeNotFoundError"),
    (["show", "TAPE", "77", "--json"], 3, "StepMissingError"),
    (["show", "TAPE", "0", "--columns", "x", "--json"], 2, "BatchError"),
    (["show", "TAPE", "x", "--json"], 2, "BadParameter"),
    (["check", "/nowhere", "--json"], 2, "TapeNotFoundError"),
    (["diff", "TAPE", "/nowhere", "--json"], 2, "TapeNotFoundError"),
    (["rerun", "TAPE", "77", "--json"], 3, "StepMissingError"),
    (["export", "/nowhere", "--to", "x", "--format", "jsonl", "--json"], 2, "TapeNotFoundError"),
    (["lss", "--json"], 2, "UsageError"),
]


@pytest.mark.parametrize(("words", "code", "kind"), WRONG)
def test_with_json_an_error_is_an_object_on_stdout(tmp_path, words, code, kind):
    tape = record(tmp_path / "t")
    done = in_process(*[tape if word == "TAPE" else word for word in words])
    said = json.loads(done.stdout)
    assert done.returncode == said["exit_code"] == code
    assert said["error"]["type"] == kind
    assert said["error"]["what"]
    assert said["error"]["what"].splitlines()[0] in done.stderr
    assert set(said["error"]) == {"type", "what", "where", "causes", "next"}


def test_without_json_an_error_leaves_stdout_empty(tmp_path):
    assert in_process("ls", "/nowhere").stdout == ""
    # What stands behind -- belongs to another command.
    done = in_process("run", "--dir", tmp_path / "x", "--mode", "replay", "--", "true", "--json")
    assert (done.returncode, done.stdout) == (2, "")


# -- steps and tapes that are not what they seem -----------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--stage", "rollout"], ["--stage", "loss"], ["--fn", "grpo"]])
def test_rerun_of_a_step_that_is_not_there_says_so(tmp_path, words):
    done = run("rerun", record(tmp_path / "t"), 77, *words)
    assert done.exit_code == 3
    assert "step 77 is not on the tape" in done.stderr
    assert "0-2" in done.stderr or words == ["--stage", "loss"]
    assert "formula" not in done.stderr


def test_a_tape_of_metrics_alone_is_not_empty(tmp_path):
    with rolltape.Tape(tmp_path / "runs/m", mode="record") as tape:
        for step in range(4):
            with tape.step(step):
                tape.log({"loss": 0.5, "reward": step})
    assert str(tape.close()) == "metrics of 4 steps, no recordings"
    done = run("ls", tmp_path / "runs/m")
    assert done.exit_code == 0, done.stderr
    assert "train: steps 0-3: loss, reward" in done.stdout
    assert "(metrics only)" in run("ls", tmp_path / "runs").stdout
    (row,) = json.loads(run("ls", tmp_path / "runs", "--json").stdout)["tapes"]
    assert row["metrics"] == ["train"]


def test_a_tape_with_nothing_on_it_is_empty(tmp_path):
    with rolltape.Tape(tmp_path / "m", mode="record") as tape:
        pass
    assert str(tape.close()) == "nothing recorded, nothing replayed"
    assert run("ls", tmp_path / "m").exit_code == 3


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these file systems")
@pytest.mark.parametrize("path", ["/proc/rolltape/tape", "/sys/rolltape", "/proc/self/task/x"])
def test_a_place_that_holds_no_files_is_said_to_be_one(path):
    with pytest.raises(rolltape.StorageError) as failed:
        rolltape.Tape(path, mode="record")
    said = str(failed.value)
    assert "the directory of the tape cannot be created" in said
    assert "file system of the kernel" in said
    assert "disappeared" not in said


def test_another_batch_size_is_not_called_another_order(tmp_path):
    def train(prompts, **options):
        with rolltape.Tape(tmp_path / "t", **options) as tape, tape.step(0):
            tape.stage("rollout", inputs=True)(lambda prompts: batch_of(0, len(prompts)))(prompts)

    train(["a", "b", "c", "d"], mode="record")
    with pytest.raises(rolltape.MismatchError) as failed:
        train(["a", "b", "c", "d", "e", "f"], mode="replay")
    assert "size" in str(failed.value)
    assert "another order" not in str(failed.value)
    with pytest.raises(rolltape.MismatchError) as failed:
        train(["b", "a", "c", "d"], mode="replay")
    assert "order" in str(failed.value)


# -- run ---------------------------------------------------------------------------------------------------

OPENS = """
import os, rolltape
with rolltape.Tape({}) as tape:
    generate = tape.stage("rollout")(lambda: {{"responses": [1, 2]}})
    with tape.step(0):
        generate()
"""


def run_program(tape, program, mode="auto"):
    return in_process("run", "--dir", tape, "--mode", mode, "--", sys.executable, "-c", program)


@pytest.mark.parametrize(
    ("mode", "there"), [("auto", False), ("auto", True), ("record", False), ("replay", True)]
)
def test_a_program_that_opens_no_tape_has_an_exit_code_of_its_own(tmp_path, mode, there):
    if there:
        record(tmp_path / "t", {0: rollout()})
    done = run_program(tmp_path / "t", "print('trained')", mode)
    assert done.returncode == 4
    assert "opened no tape" in done.stderr
    assert "rolltape.Tape.from_env()" in done.stderr
    assert done.stdout == "trained\n"


@pytest.mark.parametrize("mode", ["record", "replay", "auto"])
def test_a_program_that_opens_the_tape_has_its_own_exit_code(tmp_path, mode):
    assert run_program(tmp_path / "t", OPENS.format(""), "record").returncode == 0
    if mode != "record":
        before = sorted(os.listdir(tmp_path / "t" / ".tmp"))
        done = run_program(tmp_path / "t", OPENS.format(""), mode)
        assert (done.returncode, "opened" in done.stderr) == (0, False), done.stderr
        assert sorted(os.listdir(tmp_path / "t" / ".tmp")) == before
    failing = run_program(tmp_path / "other", "raise SystemExit(7)", "auto")
    assert failing.returncode == 7


def test_what_was_replayed_is_told(tmp_path):
    recorded = run_program(tmp_path / "t", OPENS.format(""), "record")
    assert "has 1 recording, 1 of them new\n" in recorded.stderr
    for mode in ("replay", "auto"):
        assert "0 of them new; 1 replayed\n" in run_program(tmp_path / "t", OPENS.format(""), mode).stderr
    idle = OPENS.format("").replace("generate()", "pass")
    assert "0 of them new; 0 replayed\n" in run_program(tmp_path / "t", idle, "replay").stderr


def test_a_program_that_fails_before_it_opens_a_tape_gets_no_list_to_check(tmp_path):
    done = run_program(tmp_path / "t", "raise SystemExit(7)")
    assert done.returncode == 7
    assert "failed before it opened a tape" in done.stderr
    assert "Check that" not in done.stderr


def test_an_unknown_option_is_not_taken_for_the_command(tmp_path):
    done = in_process("run", "--dir", tmp_path / "t", "--out", tmp_path / "o", "--", sys.executable, "-c", "")
    assert done.returncode == 2
    assert "no option '--out'; set it in the environment: ROLLTAPE_OUT=" in done.stderr
    done = in_process("run", "--dir", tmp_path / "t", "--ot=1", sys.executable, "-c", "")
    assert done.returncode == 2
    assert "no option '--ot'\n" in done.stderr
    record(tmp_path / "t", {0: rollout()})
    done = in_process("noise", tmp_path / "t", "--rusn", "2", "--", sys.executable, "-c", "")
    assert done.returncode == 2
    assert "no option '--rusn'\n" in done.stderr


def test_a_program_that_opens_another_tape_is_told_which(tmp_path):
    done = run_program(tmp_path / "t", OPENS.format(repr(str(tmp_path / "own"))), "record")
    assert done.returncode == 4
    assert f"did not open this tape but {tmp_path / 'own'}" in done.stderr


def test_a_mode_of_its_own_is_named(tmp_path):
    record(tmp_path / "t", {0: {"responses": [1, 2]}})
    done = run_program(tmp_path / "t", OPENS.format("mode='auto'"), "replay")
    assert done.returncode == 0
    assert "opened the tape in mode auto" in done.stderr


def test_a_process_of_the_program_counts_as_the_program(tmp_path):
    record(tmp_path / "t", {0: {"responses": [1, 2]}})
    child = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {OPENS.format('')!r}], check=True)"
    )
    assert run_program(tmp_path / "t", child, "replay").returncode == 0


def test_what_is_complained_about_is_decided_from_what_was_opened():
    assert complaint("/a", "replay", [("/b", "record"), ("/a", "replay")]) == ""
    assert "beats the environment" in complaint("/a", "replay", [("/a", "record")])


def test_demo_ends_with_the_command_that_opens_its_run(monkeypatch, tmp_path, capsys):
    from rolltape.cli.commands.demo import _print_next
    from rolltape.cli.output import Screen

    class Options:
        steps = 4

    class Story:
        folder, base, options = tmp_path, tmp_path / "base", Options()

    _print_next(Screen(), Story(), tmp_path / "page.html")
    assert (
        capsys.readouterr().out.rstrip().splitlines()[-1].strip().startswith(f"rolltape view {tmp_path}/base")
    )


def test_the_signal_to_run_is_not_a_setting(tmp_path):
    """A program that runs under `rolltape run` may start others that do not: they find no half-made state."""
    done = subprocess.run(
        [sys.executable, "-c", OPENS.format(repr(str(tmp_path / "t")))],
        env={**os.environ, "ROLLTAPE_OPENED": str(tmp_path / "gone")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "gone").exists()
