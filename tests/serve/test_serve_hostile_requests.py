"""Whatever is sent: the server answers, nothing is lost, and nothing outside the tape is read or written."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re

import pytest

import rolltape
from tests.cli_tapes import run
from tests.serve.engine import CHAT, Engine, Plan, ask, chat, rows


def raw(url: str, sent: bytes, quiet: float = 60) -> bytes:
    """Send bytes as they are; what comes back until the server ends it, or is quiet for so long."""

    async def talk() -> bytes:
        host, _, port = url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        found = b""
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError, ConnectionError):
            while piece := await asyncio.wait_for(reader.read(65536), quiet):
                found += piece
        writer.close()
        return found

    return asyncio.run(talk())


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def statuses(answer: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"^HTTP/1\.[01] ([0-9]{3}) ", answer, re.MULTILINE)]


@pytest.fixture
def recording(tmp_path):
    """A server that records; afterwards a good call still goes through, and is on the tape too."""
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        server.engine, server.tape = engine, tmp_path / "tape"
        yield server
        assert ask(server.url, chat("good")).status == 200
        server.flush()
        assert server.summary()["failure"] is None
    assert json.loads(rows(tmp_path / "tape")[-1]["request_body"]) == chat("good")
    assert run("check", tmp_path / "tape").exit_code == 0


BAD = {
    "no JSON": b"{",
    "broken UTF-8": b'{"model": "\xff\xfe"}',
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "a number of 5,000 digits": b'{"seed": ' + b"9" * 5000 + b"}",
}
ODD = {
    "a list": b"[]",
    "a word": b'"hello"',
    "null": b"null",
    "a lone surrogate": b'{"model": "\\ud800", "messages": [{"role": "user", "content": "\\udfff x"}]}',
    "a lone surrogate in a name": b'{"\\ud800": 1, "messages": []}',
    "a lone surrogate as a prompt": b'{"prompt": "\\ud800"}',
    "NaN and infinities": b'{"messages": [], "temperature": NaN, "top_p": -Infinity, "x": 1e999}',
    "a number of 4,000 digits": b'{"messages": [], "seed": ' + b"9" * 4000 + b"}",
    "token ids beyond 64 bits": b'{"prompt": [99999999999999999999999, -1]}',
    "a name twice": b'{"messages": [], "messages": [{"role": "user"}]}',
    "names that are no messages": b'{"messages": {"role": 1}, "model": [1], "stream": "yes", "n": -1}',
    "a zero byte": b'{"messages": [{"role": "user", "content": "a\\u0000b"}]}',
    "fields of every kind": b'{"messages": [1, null, "x", [2]], "model": {"a": {}}, "stop": [[]], "n": true}',
    "hundreds of levels": b'{"messages": ' + b"[" * 400 + b"]" * 400 + b"}",
    "a BOM": b'\xef\xbb\xbf{"messages": []}',
    "UTF-16": '{"messages": []}'.encode("utf-16"),
}


@pytest.mark.parametrize("body", BAD.values(), ids=list(BAD))
def test_a_body_that_cannot_be_read_is_refused(recording, body):
    answer = ask(recording.url, body)
    assert answer.status == 400
    assert answer.json["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert recording.engine.seen == []


def test_odd_bodies_are_recorded_and_found_again(tmp_path):
    body = (
        b'{"choices": [{"message": {"content": "\\ud800"}, "text": "\\udfff", "finish_reason": "\\ud800"}]}'
    )
    paths = [CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/generate", "/inference/v1/generate"]
    with (
        Engine(lambda seen: Plan(body=body)) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
    ):
        recorded = {
            (name, path): ask(server.url, sent, path=path) for name, sent in ODD.items() for path in paths
        }
        server.flush()
        assert server.summary()["failure"] is None
    taken = {who: answer.body for who, answer in recorded.items() if answer.status == 200}
    assert {answer.status for answer in recorded.values()} <= {200, 400}
    assert len(rows(tmp_path / "tape")) == len(taken) >= 13 * len(paths)
    with rolltape.serve(tmp_path / "tape", mode="replay", order="none") as server:
        for (name, path), answer in taken.items():
            assert ask(server.url, ODD[name], path=path).body == answer, (name, path)
        assert ask(server.url, ODD["a lone surrogate"]).status == 422


HEADERS = {
    "bytes that are no text": b"\xff\xfe\x80",
    "ten thousand letters": b"x" * 7000,
    "a path": b"../../../etc/passwd",
    "quotes": b"'\"; DROP TABLE calls; --",
    "an escape sequence": b"\x1b[31mred",
    "a tab": b"a\tb",
}


@pytest.mark.parametrize("name", ["X-Session-ID", "X-Request-ID", "X-Rolltape-Weights", "User-Agent"])
def test_a_header_may_say_anything(recording, name):
    body = json.dumps(chat("hello")).encode()
    for about, value in HEADERS.items():
        sent = head(f"POST {CHAT} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}",
                    "Connection: close", f"{name}: {value.decode('latin-1')}")  # fmt: skip
        (status,) = statuses(raw(recording.url, sent + body))
        assert status in (200, 400), about


def test_long_names_of_sessions_are_told_apart(recording):
    for last in "ab":
        ask(recording.url, chat("same"), X_Session_ID="x" * 6000 + last)
    recording.flush()
    assert len({row["session"] for row in rows(recording.tape)}) == 2


@pytest.mark.parametrize("step", ["-1", "1.5", "٣", "9" * 19, "", "three", "1 2"])
def test_a_step_that_is_none_is_refused(recording, step):
    assert ask(recording.url, chat("hello"), X_Rolltape_Step=step).status == 400


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"step": -1}', b'{"step": true}', b'{"step": 1e3}'])
def test_a_step_that_is_said_badly_is_refused(recording, body):
    assert ask(recording.url, body, path="/rolltape/step").status == 400


PATHS = [
    "/r//..%2f..%2f..%2fetc/passwd/v1/chat/completions",
    "/r/%2e%2e/%2e%2e/v1/chat/completions",
    "/r/../../v1/chat/completions",
    "//127.0.0.1:1/v1/chat/completions",
    "/r/a%00b/v1/chat/completions",
    "/r/%ff%fe/v1/chat/completions",
    "/sessions/%2Fetc%2Fpasswd/v1/chat/completions",
    "/r/step/99999999999999999999/x/v1/chat/completions",
    "/r/" + "a/" * 500 + "v1/chat/completions",
    "/rolltape/../../../etc/passwd",
    "/r",
    "/r/",
    "/r/x",
    "/@example.com/v1/chat/completions",
    "/..;/v1/chat/completions",
    "*",
    "http://example.com/v1/chat/completions",
    "example.com:443",
]


@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS", "CONNECT", "TRACE", "DELETE"])
def test_no_path_leads_out(recording, tmp_path, method):
    before = {path for path in tmp_path.parent.rglob("*") if tmp_path / "tape" not in path.parents}
    body = json.dumps(chat("hello")).encode()
    for path in PATHS:
        sent = head(f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}",
                    "Connection: close")  # fmt: skip
        found = statuses(raw(recording.url, sent + body))
        assert found, path
        assert 500 not in found, path
    after = {path for path in tmp_path.parent.rglob("*") if tmp_path / "tape" not in path.parents}
    assert after == before


SMUGGLED = b"POST /smuggled HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 4", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 4"],
        ["Content-Length: 4", "Content-Length: 5"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding: xchunked"],
        ["Content-Length: +4"],
        ["Content-Length : 4"],
    ],
    ids=" and ".join,
)
def test_a_request_hidden_in_another_is_not_seen(recording, lines):
    sent = head(f"POST {CHAT} HTTP/1.1", "Host: localhost", *lines)
    raw(recording.url, sent + b"0\r\n\r\n" + SMUGGLED, quiet=0.5)
    assert not [seen for seen in recording.engine.seen if "smuggled" in seen.path]


def test_bodies_above_the_limit_are_refused(tmp_path):
    with Engine() as engine:
        with rolltape.serve(tmp_path / "tape", engine.url, mode="record", max_body="10KB") as server:
            large = chat("x" * 20_000)
            assert ask(server.url, large).status == 413
            pieces = json.dumps(large).encode()
            chunked = head(f"POST {CHAT} HTTP/1.1", "Host: localhost", "Connection: close",
                           "Transfer-Encoding: chunked")  # fmt: skip
            chunked += b"%x\r\n%s\r\n0\r\n\r\n" % (len(pieces), pieces)
            assert statuses(raw(server.url, chunked)) == [413]
            assert ask(server.url, large, path="/update_weights").status == 413
            assert ask(server.url, large, path="/rolltape/step").status in (400, 413)
            assert ask(server.url, chat("small")).status == 200
        assert len(engine.seen) == 1


def test_a_compressed_body_is_refused_before_it_grows(recording):
    bomb = gzip.compress(b" " * 50_000_000)
    answer = ask(recording.url, bomb, Content_Encoding="gzip")
    assert answer.status == 400
    assert "compressed" in answer.json["error"]["message"]
    assert recording.engine.seen == []


def test_headers_above_the_limit_are_refused(recording):
    sent = head(f"GET {CHAT} HTTP/1.1", "Host: localhost", "Connection: close", "X: " + "x" * 10_000)
    assert statuses(raw(recording.url, sent)) == [400]
