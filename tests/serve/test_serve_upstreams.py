"""Several servers behind: in turns or by session, one that is down is left out, updates reach all."""

from __future__ import annotations

import socket
import threading

import pytest

import rolltape
from rolltape.serving import upstream
from tests.serve.engine import Engine, Plan, ask, chat, rows, until


def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_calls_go_round(tmp_path):
    with Engine() as a, Engine() as b, Engine() as c:
        with rolltape.serve(tmp_path / "tape", [a.url, b.url, c.url], mode="record") as server:
            for number in range(9):
                ask(server.url, chat(f"{number}"))
        assert [len(one.seen) for one in (a, b, c)] == [3, 3, 3]
    assert [host["calls"] for host in server.summary()["upstream"]["hosts"]] == [3, 3, 3]


def test_a_session_stays_where_it_is(tmp_path):
    with Engine() as a, Engine() as b:
        with rolltape.serve(tmp_path / "t", [a.url, b.url], mode="record", spread="session") as server:
            for turn in range(3):
                for name in range(12):
                    ask(server.url, chat(f"{turn}"), X_Session_ID=f"s{name}")
        sessions = [{seen.headers["x-session-id"] for seen in one.seen} for one in (a, b)]
    assert not sessions[0] & sessions[1]
    assert all(sessions)


def test_one_that_is_down_is_left_out(tmp_path):
    with Engine() as engine:
        with rolltape.serve(tmp_path / "tape", [nobody(), engine.url], mode="record") as server:
            assert {ask(server.url, chat(f"{n}")).status for n in range(6)} == {200}
            hosts = server.summary()["upstream"]["hosts"]
        assert [host["healthy"] for host in hosts] == [False, True]
        assert hosts[0]["failed"] == 1
        assert len(engine.seen) == 6
    assert len(rows(tmp_path / "tape")) == 6


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/update_weights", "/v1/models"])
def test_all_down_is_a_bad_gateway_that_may_be_tried_again(tmp_path, path):
    with rolltape.serve(tmp_path / "tape", [nobody(), nobody()], mode="record") as server:
        answer = ask(server.url, chat("x"), path=path)
        assert answer.status == 502
        assert "x-should-retry" not in answer.headers
        assert answer.json["error"]["message"]
        assert server.summary()["step"] == 0
    assert rows(tmp_path / "tape") == []


def test_updates_of_weights_reach_all_or_fail(tmp_path):
    with (
        Engine() as a,
        Engine() as b,
        rolltape.serve(tmp_path / "tape", [a.url, b.url], mode="record") as server,
    ):
        ask(server.url, chat("x"))
        assert ask(server.url, {"v": 1}, path="/update_weights").status == 200
        assert [len(one.calls("/update_weights")) for one in (a, b)] == [1, 1]
        assert server.summary()["step"] == 1
        ask(server.url, chat("x"))
        b.plan = lambda seen: Plan(status=500)
        assert ask(server.url, {"v": 2}, path="/update_weights").status == 500
        assert server.summary()["step"] == 1


def test_one_server_that_misses_an_update_is_an_error(tmp_path):
    with (
        Engine() as engine,
        rolltape.serve(tmp_path / "tape", [engine.url, nobody()], mode="record") as server,
    ):
        ask(server.url, chat("x"))
        assert ask(server.url, {}, path="/update_weights").status == 502
        assert server.summary()["step"] == 0


def test_a_server_that_says_nothing_is_given_up(tmp_path):
    with (
        Engine(lambda seen: Plan(body=b"{}", hang=True)) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record", timeout=0.5) as server,
    ):
        assert ask(server.url, chat("x")).status == 502
        until(lambda: engine.broken_off)


def test_an_idle_connection_is_let_go_before_its_server_does(tmp_path, monkeypatch):
    """Uvicorn and llama.cpp close theirs after 5 seconds, maybe while a call is sent on it."""
    assert upstream.IDLE_SECONDS < 5
    monkeypatch.setattr(upstream, "IDLE_SECONDS", 0.1)
    body = b'{"choices": []}'
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with rolltape.serve(tmp_path / "tape", url, mode="record") as server:
            asking = threading.Thread(target=ask, args=(server.url, chat("x")))
            asking.start()
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(30)
                while b"}" not in connection.recv(65536):
                    pass
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
                asking.join()
                assert connection.recv(1) == b"", "it is closed by who uses it"


def test_redirects_and_errors_are_the_clients_business(tmp_path):
    plans = {"302": Plan(status=302, body=b"", headers={"location": "http://127.0.0.1:1/x"})}
    plans |= {code: Plan(status=int(code), headers={"retry-after": "7"}) for code in ("401", "429", "503")}
    with (
        Engine(lambda seen: plans[seen.json["user"]]) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
    ):
        for code in ("401", "429", "503"):
            answer = ask(server.url, chat(code, user=code))
            assert (answer.status, answer.headers["retry-after"]) == (int(code), "7")
    with rolltape.serve(tmp_path / "tape", mode="replay") as server:
        for code in ("401", "429", "503"):
            answer = ask(server.url, chat(code, user=code))
            assert (answer.status, answer.headers["retry-after"]) == (int(code), "7")
