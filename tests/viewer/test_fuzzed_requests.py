"""Requests that no browser sends: an answer of ours to each, soon, and never more than it may say.

`make test` tries a few hundred; `make fuzz` as many as EXAMPLES says, with SEED to begin from.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pytest
from starlette.routing import Match

import rolltape
from rolltape.viewer.library import Library
from rolltape.viewer.web.guard import HEADERS
from rolltape.viewer.web.server import Viewer
from tests.fuzz.test_fuzz import harmless, seeds

TOKEN = "a token; with odd characters"
ADDRESSES = [
    "/", "/state", "/static/x.js", "/t/0", "/t/1", "/t/0/train/rollout/0", "/t/0/train/rollout/0/1",
    "/t/0/val/rollout/0", "/c/0/1", "/c/0/1/train/rollout/0", "/c/0/1/train/rollout/0/1",
    "/series/0/train/rollout", "/series/1/train/reward", "/o", "/matrix", "/size/0", "/report/0/1",
    "/verdict/0/1", "/verdict/1/0", "/trust/0/train", "/trusted/0/train", "/trusted/0/train/strip",
    "/axes/0/train/rollout", "/s/0", "/found/0", "/p/0", "/fared/0", f"/prompt/train/rollout/{'0' * 32}",
    f"/visits/train/rollout/{'0' * 32}", f"/course/train/rollout/{'0' * 32}", "/asked/0/train/rollout/0/1",
    "/peek/0/train/rollout/0/1", "/spelled/0/train/rollout/0/1", "/g/0/train/rollout/0/1", "/notes/0",
    "/note/0/train/rollout/0/1",
]  # fmt: skip
ODD = [
    "", ".", "..", "%2e%2e", "..%2f..%2f..%2fetc%2fpasswd", "/etc/passwd", "~", "\\", "%00",
    "%0d%0aX-Evil: 1",
    "-1", "+1", "0x1", "1e3", "٣", "0" * 19, "9" * 19, "9" * 20, "9" * 5000, "%ff", "%ed%a0%80", "a" * 300,
    "<script>pwned()</script>", "{{7*7}}", "{tape}", "train", "rollout", "metrics.jsonl", "tape.json", "CON",
    "\u202e", "\x1b[2J", "%E2%80%AE", "0", "1", "2",
]  # fmt: skip
QUERIES = [
    b"", b"q=", b"q=a&regex=1", b"q=(&regex=1", b"q=[&regex=1", b"q=(%3FP<a&regex=1", b"q=%ff%00",
    b"split=..",
    b"split=val", b"split=", b"token=", b"token=wrong", b"q=" + b"a" * 5000, b"regex=1", b"&&&===",
    b"\xff\xfe",
    b"on=0,1", b"on=0&on=0", b"on=", b"on=-1,1", b"on=9" + b"9" * 5000, b"on=0&" * 2000, b"on=%ff,1",
    b"on=0,1&split=<script>pwned()</script>", b"on=0,1&split=..%2f", b"on=1e3,0x1", b"on=" + b"0," * 9000,
    b"by=<b>&on=0,1",
    b"where=reward+>+0", b"where=" + b"(" * 3000, b"where=reward+>+" + b"9" * 5000,
    b"where=<script>pwned()</script>",
    b"against=1", b"against=-1", b"against=" + b"9" * 5000, b"against=0&finding=%ff", b"sort=reward&dir=up",
    b"sort=<script>pwned()</script>&dir=..", b"page=-1", b"page=" + b"9" * 5000, b"page=1e3", b"pass=nan",
    b"pass=-inf", b"pass=1" + b"0" * 5000, b"trend=worse&pass=x", b"tag=<script>pwned()</script>",
    b"side=..%2f",
    b"left=9&right=-1", b"left=" + b"9" * 5000, b"from=0x1", b"stage=..&split=..", b"by=tokens&stage=\xff",
    b"q=<script>pwned()</script>", b"q=%0d%0a::error::pwned", b"token=%ff", b"q=\\", b"q=\\1&regex=1",
]  # fmt: skip
FIELDS = [
    (b"host", b"127.0.0.1:8000"), (b"host", b"evil.example"), (b"host", b""), (b"host", b"[::1"),
    (b"host", b"\xff"), (b"host", b"localhost:99999"), (b"origin", b"null"),
    (b"origin", b"http://evil.example"),
    (b"origin", b"\xff"), (b"sec-fetch-site", b"cross-site"), (b"sec-fetch-site", b"none"),
    (b"cookie", b"\xff"),
    (b"cookie", b"rolltape-token=" + b"0" * 64), (b"cookie", b"rolltape-token=\xe9"),
    (b"cookie", b"a" * 9000),
    (b"cookie", b'rolltape-token="\\'), (b"referer", b"\x00"), (b"accept", b"\xff" * 100),
    (b"range", b"bytes=-1"),
    (b"cookie", b'rolltape-token="' + b"\\" * 60_000 + b'"'), (b"cookie", b";" * 60_000),
    (b"content-length", b"-1"), (b"x-forwarded-host", b"evil.example"),
]  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Library:
    folder = tmp_path_factory.mktemp("fuzzed")
    for name in ("base", "other"):
        with rolltape.Tape(folder / name, mode="record") as tape, tape.step(0):
            batch = {"uid": ["a", "b"], "prompt": ["<b>1</b>", "2"], "responses": np.arange(6).reshape(2, 3)}
            tape.stage("rollout")(lambda batch=batch: batch)()
            tape.stage("reward")(lambda: {"reward": [0.5, 1.0]})()
            tape.log({"loss": 0.5})
    return Library([str(folder / "base"), str(folder / "other")])


def request(draw: random.Random) -> dict[str, Any]:
    """What a server hands on: one address that there is, with some of it replaced."""
    parts = draw.choice(ADDRESSES).split("/")
    for _ in range(draw.randrange(3)):
        at = draw.randrange(len(parts))
        parts[at : at + draw.randrange(2)] = [draw.choice(ODD)]
    raw = quote("/".join(parts), safe="/%:+~<>{}*").encode()
    fields = [FIELDS[0]] if draw.random() < 0.8 else []
    fields += draw.sample(FIELDS, draw.randrange(3))
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "",
        "method": draw.choice(["GET"] * 6 + ["HEAD", "POST", "OPTIONS", "X" * 50]),
        "path": unquote(raw.decode("ascii")) or "/", "raw_path": raw, "query_string": draw.choice(QUERIES),
        "headers": fields, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
    }  # fmt: skip


def answer(app: Any, scope: dict[str, Any], body: bytes = b"") -> tuple[int, dict[bytes, bytes], bytes]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    start, *bodies = sent
    return start["status"], dict(start["headers"]), b"".join(message.get("body", b"") for message in bodies)


BODIES = [
    b"", b"{}", b"[]", b"null", b"1", b'{"text": "', b'{"text": 1, "tags": 2}',
    b'{"text": "a", "tags": ["b"]}',
    b'{"text": "<script>pwned()</script>", "tags": ["<b>"]}', b"[" * 100_000, b"9" * 6000, b"\xff\xfe",
    b'{"text": "\\ud800", "tags": []}', b'{"text": "' + b"a" * 2_000_000 + b'"}',
]  # fmt: skip


def test_no_page_is_forgotten(library):
    """A route that is new is asked for here too."""
    routes = Viewer(library).app._app.routes
    scopes = [request(random.Random(0)) | {"path": path, "raw_path": path.encode()} for path in ADDRESSES]
    assert [
        one.path for one in routes if not any(one.matches(scope)[0] is not Match.NONE for scope in scopes)
    ] == []


def test_every_request_has_an_answer_of_ours(library):
    app = Viewer(library).app
    seen = set()
    for seed in seeds(300):
        draw = random.Random(seed)
        scope = request(draw)
        with harmless(seed):
            status, headers, body = answer(app, scope, draw.choice(BODIES))
            seen.add(status)
            expected = (200, 302, 307, 400, 403, 404, 405, 413)
            assert status in expected, f"{status} for {scope}"
            assert all(headers[name.encode()] == value.encode() for name, value in HEADERS.items())
            assert not any(b"\r" in value or b"\n" in value for value in headers.values())
            assert b"root:" not in body
            assert b"<script>pwned" not in body
    assert {200, 403, 404} <= seen or len(seeds(300)) < 300


def test_without_the_token_nothing_is_said_whatever_is_asked(library):
    app = Viewer(library, token=TOKEN).app
    for seed in seeds(150):
        with harmless(seed):
            status, _, body = answer(app, request(random.Random(seed)))
            assert status == 403
            assert TOKEN.encode() not in body


@pytest.mark.parametrize("path", ["/t/0/", "/t/0", "/", "/nowhere/"])
@pytest.mark.parametrize("query", [b"\xff\xfe", b"token=\xff", b"q=\xed\xa0\x80&\x00=\x7f", "q=ü".encode()])
def test_a_query_that_is_no_text_has_an_answer(library, path, query):
    scope = request(random.Random(0)) | {"method": "GET", "headers": [FIELDS[0]], "query_string": query}
    status, headers, _ = answer(Viewer(library).app, scope | {"path": path, "raw_path": path.encode()})
    assert status in (200, 302, 307, 404)
    assert all(value.isascii() for value in headers.values())
