"""Who may ask: this machine, or whoever knows the token. And what happens if the tape cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import rolltape
from rolltape.errors import ConfigError
from rolltape.serving import read_options, secured
from rolltape.storage import LocalStorage
from tests.serve.engine import Engine, ask, chat, rows, until


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1"])
def test_this_machine_needs_no_token(host):
    assert secured(read_options(host=host)).token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.com"])
def test_others_need_one(host):
    token = secured(read_options(host=host)).token
    assert len(token) >= 24
    assert token != secured(read_options(host=host)).token


def test_a_server_for_others_answers_nobody_without_its_token(tmp_path):
    with (
        Engine() as engine,
        rolltape.serve(tmp_path / "t", engine.url, mode="record", host="0.0.0.0") as server,
    ):
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        for path in ("/v1/chat/completions", "/rolltape/step", "/health", "/update_weights"):
            assert ask(url, {"step": 1}, path=path).status == 401
            assert ask(url, {"step": 1}, path=path, Authorization="Bearer wrong").status == 401
        for path in ("/rolltape/", "/rolltape/status"):
            assert ask(url, path=path, method="GET").status == 401
        assert engine.seen == []
        assert ask(url, chat("x"), Authorization=f"Bearer {server.token}").status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "2130706433", ""]
)
def test_another_name_for_this_machine_is_refused(tmp_path, host):
    """A page that makes its own name mean 127.0.0.1 gets nothing."""
    with Engine() as engine, rolltape.serve(tmp_path / "t", engine.url, mode="record") as server:
        assert ask(server.url, chat("x"), Host=host).status in (400, 403)
        assert engine.seen == []


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "file://"])
def test_pages_of_other_sites_are_refused(tmp_path, origin):
    with Engine() as engine, rolltape.serve(tmp_path / "t", engine.url, mode="record") as server:
        assert ask(server.url, chat("x"), Origin=origin).status == 403
        assert ask(server.url, {"step": 3}, path="/rolltape/step", Origin=origin).status == 403
        assert engine.seen == []
        assert ask(server.url, chat("x"), Origin=server.url).status == 200


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "record"},
        {"mode": "off", "upstream": "http://x"},
        {"upstream": "localhost:8000"},
        {"upstream": "file:///etc/passwd"},
        {"engines": "alive", "mode": "replay"},
        {"wait": 0},
        {"pace": "0x"},
        {"pace": "fast"},
        {"timeout": -1},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ConfigError):
        read_options(**options)


def test_a_tape_that_cannot_be_written_is_told_to_every_client(tmp_path, monkeypatch):
    """The disk is full in the middle: nobody goes on as if calls were recorded."""

    def full(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        assert ask(server.url, chat("before")).status == 200
        server.flush()
        monkeypatch.setattr(LocalStorage, "publish", full)
        ask(server.url, chat("the one that finds out"))
        until(lambda: server.summary()["failure"])
        answer = ask(server.url, chat("after"))
        assert answer.status == 500
        assert "No space left" in answer.json["error"]["message"]
        assert answer.headers["x-should-retry"] == "false"
        assert len(engine.seen) == 2
    assert "No space left" in server.summary()["failure"]
    assert [row["status"] for row in rows(tmp_path / "tape")] == [200]


def test_new_calls_wait_while_those_before_them_cannot_be_written(tmp_path, monkeypatch):
    """What was answered a second ago is on the tape, on a slow disk too: nobody runs ahead of it."""
    stuck, publish = threading.Event(), LocalStorage.publish

    def slow(self, *args, **kwargs):
        assert stuck.wait(60)
        return publish(self, *args, **kwargs)

    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        monkeypatch.setattr(LocalStorage, "publish", slow)
        ask(server.url, chat("first"))
        until(lambda: not server._writer.has_room)
        later = threading.Thread(target=ask, args=[server.url, chat("second")])
        later.start()
        until(lambda: server.summary()["calls"]["asked"] == 2)
        assert len(engine.seen) == 1
        stuck.set()
        later.join()
        assert len(engine.seen) == 2
    assert len(rows(tmp_path / "tape")) == 2


def cli(*words: str) -> subprocess.Popen:
    environ = {**os.environ, "PYTHONPATH": str(Path(rolltape.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-m", "rolltape", "serve", *words], env=environ, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_the_command_ends_with_what_happened(tmp_path):
    """0 if all was well, 1 if something was missed."""
    with Engine() as engine:
        server = cli(str(tmp_path / "tape"), "--mode", "record", "--upstream", engine.url)
        ask(server.stdout.readline().strip(), chat("x"))
        server.terminate()
        out, _ = server.communicate(timeout=60)
        assert server.returncode == 0
        assert "1 call, 1 live, 1 recorded" in out
    for body, code in [(chat("x"), 0), (chat("y"), 1)]:
        server = cli(str(tmp_path / "tape"), "--mode", "replay", "--json")
        ask(server.stdout.readline().strip(), body)
        server.send_signal(2)
        server.communicate(timeout=60)
        assert server.returncode == code


def test_a_tape_that_has_calls_is_not_recorded_over(tmp_path):
    with Engine() as engine:
        with rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
            ask(server.url, chat("x"))
        with (
            pytest.raises(rolltape.StepExistsError),
            rolltape.serve(tmp_path / "tape", engine.url, mode="record"),
        ):
            pass
        with rolltape.serve(tmp_path / "tape", engine.url, mode="rewrite") as server:
            ask(server.url, chat("y"))
    assert len(rows(tmp_path / "tape")) == 1


def test_a_replay_without_a_tape_says_so(tmp_path):
    with pytest.raises(rolltape.TapeNotFoundError), rolltape.serve(tmp_path / "tape", mode="replay"):
        pass
    assert not (tmp_path / "tape").exists()
