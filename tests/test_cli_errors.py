"""Every way out of the command line: a message on stderr, an exit code, and no traceback unasked."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.cli_tapes import command, file_of, in_process, in_terminal, record, rollout, run

READING = [["ls"], ["show", "0"], ["check"], ["doctor"]]


def arguments(words, tape):
    return [words[0], tape, *words[1:]]


def test_the_version_and_the_help_come_at_once():
    assert run("--version").stdout.startswith("rolltape 0.")
    bare = run()
    assert bare.exit_code == 0
    assert bare.stdout == run("--help").stdout
    assert "Exit codes: 0 clean" in bare.stdout


@pytest.mark.parametrize("words", READING)
def test_json_is_one_document_and_nothing_else(tmp_path, words):
    tape = record(tmp_path / "t")
    done = in_process(*arguments(words, tape), "--json")
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)


@pytest.mark.parametrize("words", [["ls"], ["show", "0"], ["check"], ["prune"]])
@pytest.mark.parametrize("what", ["missing", "file", "empty"])
def test_a_tape_that_is_none(tmp_path, words, what):
    path = tmp_path / "x"
    if what == "file":
        path.write_text("hello")
    elif what == "empty":
        path.mkdir()
    done = run(*arguments(words, path))
    finds = words[0] in ("ls", "check") and what == "empty"  # these look for tapes below
    assert done.exit_code == (3 if finds else 2)
    assert str(path) in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_directory_of_tapes_is_no_tape(tmp_path):
    record(tmp_path / "inner", {0: rollout()})
    done = run("show", tmp_path, 0)
    assert done.exit_code == 2
    assert "inner" in done.stderr


def test_a_newer_tape_asks_for_an_upgrade(tmp_path):
    tape = record(tmp_path / "t", {0: rollout()})
    (tape / "tape.json").write_text('{"format": 999}')
    done = run("ls", tape)
    assert done.exit_code == 2
    assert "pip install --upgrade rolltape" in done.stderr


def test_hostile_paths_in_messages_are_written_out(tmp_path):
    done = run("show", tmp_path / "a\x1b[2Jb", 0)
    assert "\x1b" not in done.stderr
    assert r"a\x1b[2Jb" in done.stderr


def test_hostile_names_on_a_tape_are_written_out(tmp_path):
    tape = record(tmp_path / "t", {0: rollout()})
    (tape / "train\x1b[2J/rollout").mkdir(parents=True)
    (tape / "train\x1b[2J/rollout/step_000000.parquet").write_bytes(file_of(tape, 0).read_bytes())
    manifest = json.loads((tape / "tape.json").read_text())
    manifest |= {"id": 7, "created": "\x1b]0;owned\x07", "producer": "\x1b[31m"}
    (tape / "tape.json").write_text(json.dumps(manifest))
    for args in (["ls", tmp_path], ["ls", tape], ["check", tape], ["doctor", tape], ["show", tape, 9]):
        done = run(*args)
        assert "internal error" not in done.stderr
        assert "\x1b" not in done.stdout + done.stderr, args
    assert run("check", tape).exit_code == 1


@pytest.mark.parametrize("args", [["nope"], ["ls", "--nope"], ["show"], ["ls", "--limit", "-1"], ["ls", ""]])
def test_wrong_usage_is_2(args):
    done = run(*args)
    assert done.exit_code == 2
    assert done.stdout == ""


def test_an_internal_error_is_short_and_its_traceback_can_be_asked_for(tmp_path, monkeypatch):
    from rolltape.cli.commands import ls

    def broken(*_):
        raise ZeroDivisionError("oh no")

    monkeypatch.setattr(ls, "find_tapes", broken)
    done = run("ls", tmp_path)
    assert done.exit_code == 2
    assert "internal error: ZeroDivisionError: oh no" in done.stderr
    assert "ROLLTAPE_TRACEBACK=1" in done.stderr
    assert "Traceback" not in done.stderr
    told = run("ls", tmp_path, env={"ROLLTAPE_TRACEBACK": "1"})
    assert told.exit_code == 2
    assert "Traceback" in told.stderr


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    tape = record(tmp_path / "t", {step: {"x": [step]} for step in range(20)}, metrics=False)
    for args in (["ls", tape], ["ls", tape, "--json"], ["show", tape, 0], ["doctor", tape]):
        process = subprocess.Popen(command(*args), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.close()
        with process.stderr:
            complaint = process.stderr.read()
        assert process.wait() == 141, args
        assert complaint == b"", args


def test_an_interrupt_is_130(tmp_path):
    tape = record(tmp_path / "t", {0: rollout()})
    code = (
        "import os, signal, sys\n"
        "from rolltape.cli import main\n"
        "from rolltape.storage import LocalStorage\n"
        # Whoever runs the tests may ignore it (nohup, a shell's background job), and children inherit that.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "LocalStorage.folders = lambda *args: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.exit(main(['ls', sys.argv[1]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tape)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, done.stderr
    assert "interrupted" in done.stderr
    assert "Traceback" not in done.stderr


def test_colour_is_for_terminals_that_want_it(tmp_path):
    tape = record(tmp_path / "t", {0: rollout()})
    file_of(tape, 0).write_bytes(b"")
    assert "\x1b[31m" in in_terminal("ls", tape)[1]
    assert "\x1b[31m" not in in_terminal("ls", tape, NO_COLOR="1")[1]
    assert "\x1b" not in in_process("ls", tape).stdout


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_tables_fit_the_terminal(tmp_path, columns):
    for rank in (0, 1):
        tape = record(tmp_path / "a-rather-long-name-for-a-tape" / "and-another-one", rank=rank, world_size=2)
    for args in (["ls", tmp_path], ["ls", tape], ["show", tape, 0], ["check", tape]):
        screen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", in_terminal(*args, columns=columns)[1])
        lines = [line for line in screen.splitlines() if str(tape) not in line]  # paths are never broken
        assert max(map(len, lines)) <= columns, args


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_output_encoding_will_do(tmp_path, encoding):
    tape = record(tmp_path / "t", {0: {"responses": ["日本語 ⋯ é \udcff"]}})
    done = in_process("show", tape, 0, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert "responses" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_the_shells_own(shell):
    done = run("completion", shell)
    assert done.exit_code == 0
    assert f"_ROLLTAPE_COMPLETE={shell}_complete" in done.stdout


def completed(line):
    """What the shell is offered for the last word of a command line."""
    words = line.split(" ")
    env = {"_ROLLTAPE_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(command(), capture_output=True, text=True, env={**os.environ, **env})
    return done.stdout.split()


def test_tapes_and_steps_are_completed(tmp_path):
    tape = record(tmp_path / "t", {step: {"x": [1]} for step in (3, 10, 12)}, metrics=False)
    record(tape, {7: {"x": [1]}}, stage="reward", metrics=False)
    assert "plain,doctor" in completed("rolltape d")
    assert completed("rolltape show ") == ["dir,"]
    assert completed(f"rolltape show {tape} ") == ["plain,3", "plain,10", "plain,12"]
    assert completed(f"rolltape show {tape} 1") == ["plain,10", "plain,12"]
    assert completed(f"rolltape show --stage reward {tape} ") == ["plain,7"]
    assert completed(f"rolltape show {tmp_path}/nothing-here ") == []


def test_the_library_loads_no_command_line():
    code = "import sys, rolltape; print({'click', 'rich'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
