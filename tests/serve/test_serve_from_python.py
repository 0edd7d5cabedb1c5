"""From Python, from pytest, under a command: the same server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rolltape
from rolltape.serving.lookup import Lookup
from tests.cli_tapes import run
from tests.serve.engine import Engine, Plan, ask, chat, rows

CALL = """
import json, sys, urllib.request
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
request = urllib.request.Request(sys.argv[1] + "/chat/completions", body)
print(urllib.request.urlopen(request).read().decode())
"""


def test_a_tape_is_served_in_its_own_mode(tmp_path):
    with (
        Engine() as engine,
        rolltape.Tape(tmp_path / "tape", mode="record") as opened,
        rolltape.serve(opened, engine.url) as server,
    ):
        said = ask(server.url, chat("x")).text
        assert server.summary()["mode"] == "record"
    with rolltape.serve(tmp_path / "tape", mode="replay") as server:
        assert ask(server.url, chat("x")).text == said
    assert server.summary()["calls"]["replayed"] == 1


def test_what_was_answered_is_on_the_tape_when_the_block_ends(tmp_path):
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        for number in range(50):
            ask(server.url, chat(f"{number}"))
    assert len(rows(tmp_path / "tape")) == 50 == server.summary()["on_tape"]


def test_an_error_in_the_block_ends_the_server(tmp_path):
    def fail(url: str) -> None:
        with rolltape.serve(tmp_path / "tape", url, mode="record") as server:
            ask(server.url, chat("x"))
            raise ZeroDivisionError

    with Engine() as engine, pytest.raises(ZeroDivisionError):
        fail(engine.url)
    assert len(rows(tmp_path / "tape")) == 1


SUITE = """
import json, urllib.request

def test_it(rolltape_serve):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
    request = urllib.request.Request(rolltape_serve.url + "/v1/chat/completions", body)
    print("SAID", json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""


def suite(folder: Path, *words: str) -> tuple[int, str]:
    """The exit code of a test suite of its own, and what its test said."""
    environ = {**os.environ, "PYTHONPATH": str(Path(rolltape.__file__).parents[1])}
    plugin = ["-p", "rolltape.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-s", *plugin, *words, str(folder)],
        env={**environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, cwd=folder, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_the_fixture_records_once_and_replays(tmp_path):
    (tmp_path / "test_suite.py").write_text(SUITE)
    code, told = suite(tmp_path)
    assert code == 1
    assert "--rolltape=record" in told
    with Engine() as engine:
        code, first = suite(tmp_path, "--rolltape=record", f"--rolltape-upstream={engine.url}")
        assert code == 0, first
        assert len(engine.seen) == 1
    code, second = suite(tmp_path)
    assert code == 0
    said = [re.findall("SAID (.*)", one) for one in (first, second)]
    assert said[0] == said[1] != []


def command(tape: Path, mode: str, *words: str, upstream: str | None = None):
    more = ["--upstream", upstream] if upstream else []
    environ = {"PYTHONPATH": str(Path(rolltape.__file__).parents[1]), "PATH": os.environ["PATH"]}
    return run("run", "--serve", "--dir", tape, "--mode", mode, *more, "--", *words, env=environ)


@pytest.mark.parametrize("place", ["{url}/v1", "env"])
def test_a_command_is_given_the_address(tmp_path, place, capfd):
    script = tmp_path / "script.py"
    said = "sys.argv[1]" if place != "env" else "os.environ['OPENAI_BASE_URL']"
    script.write_text("import os\n" + CALL.replace("sys.argv[1]", said))
    with Engine() as engine:
        words = [sys.executable, str(script), *([place] if place != "env" else [])]
        assert command(tmp_path / "tape", "record", *words, upstream=engine.url).exit_code == 0
        assert len(engine.seen) == 1
    first = capfd.readouterr().out
    assert command(tmp_path / "tape", "replay", *words).exit_code == 0
    assert "answer" in first
    assert capfd.readouterr().out == first


def test_a_command_that_calls_nobody_is_code_4_and_its_own_code_is_passed_on(tmp_path):
    with Engine() as engine:
        done = command(tmp_path / "a", "record", sys.executable, "-c", "pass", upstream=engine.url)
        assert done.exit_code == 4
        done = command(tmp_path / "b", "record", sys.executable, "-c", "exit(7)", upstream=engine.url)
        assert done.exit_code == 7


def test_memory_is_bounded_however_large_the_answers(tmp_path, monkeypatch):
    """Sixty answers of half a megabyte with two megabytes to keep them in: most are read again."""
    large = b'{"choices": [{"message": {"content": "%s"}}]}' % (b"x" * 500_000)
    with (
        Engine(lambda seen: Plan(body=large)) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
    ):
        for number in range(60):
            ask(server.url, chat(f"{number}"))
    kept = []
    keep = Lookup.keep
    monkeypatch.setattr(Lookup, "keep", lambda self, *a: (keep(self, *a), kept.append(self._cached)))
    with rolltape.serve(tmp_path / "tape", mode="replay", order="none", memory="2MB") as server:
        for number in range(60):
            assert ask(server.url, chat(f"{number}")).body == large
    files = len(list(rolltape.open(tmp_path / "tape").recordings("calls")))
    assert files > 4
    assert max(kept) < 2e6 + 2 * 30e6 / files  # what was asked for, and the one file that is being given
