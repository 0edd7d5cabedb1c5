"""Keys, cookies and tokens reach the server behind, and no file of the tape."""

from __future__ import annotations

import json

import pytest

import rolltape
from tests.serve.engine import Engine, Plan, ask, chat, rows

SECRET = "sk-7f3a9c-do-not-write-this-down"


def everything(tape) -> str:
    """All that is in the files: their bytes, their columns as any reader sees them, and what was said."""
    import pyarrow.parquet as parquet

    found = [path.read_bytes().decode("latin-1") for path in tape.rglob("*") if path.is_file()]
    for path in tape.rglob("*.parquet"):
        file = parquet.ParquetFile(path)
        found.append(repr(file.metadata.metadata))
        for row in file.read().to_pylist():
            found.append(repr(row))
            found += [value.decode("latin-1") for value in row.values() if isinstance(value, bytes)]
    return "\n".join(found)


HEADERS = {
    "Authorization": f"Bearer {SECRET}",
    "Proxy_Authorization": f"Basic {SECRET}",
    "Cookie": f"session={SECRET}",
    "X_API_Key": SECRET,
    "api_key": SECRET,
    "X_Goog_Api_Key": SECRET,
    "X_Auth_Token": SECRET,
    "X_Unheard_Of": SECRET,
    "OpenAI_Organization": SECRET,
}
BODIES = {
    "a field": chat("hello", api_key=SECRET),
    "in capitals": chat("hello", API_KEY=SECRET),
    "a field in a field": chat("hello", extra={"auth": {"token": SECRET}}),
    "headers of a tool": chat(
        "hello", tools=[{"type": "mcp", "authorization": SECRET, "headers": {"X-Api-Key": SECRET}}]
    ),
    "a list": chat("hello", metadata=[{"password": SECRET}]),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_no_secret_reaches_the_tape(tmp_path, body):
    tape, query = tmp_path / "tape", f"?api_key={SECRET}&key={SECRET}&n=2"
    engine = Engine(lambda seen: Plan(headers={"Set-Cookie": f"a={SECRET}", "X-Auth-Token": SECRET}))
    with engine, rolltape.serve(tape, engine.url, mode="record") as server:
        recorded = ask(server.url, body, path="/v1/chat/completions" + query, **HEADERS)
        ask(server.url, body, path="/update_weights" + query, **HEADERS)
        ask(server.url, body, path="/v1/models" + query, method="GET", **HEADERS)
        form = f"api_key={SECRET}&n=2".encode()
        ask(server.url, form, path="/v1/files", Content_Type="application/x-www-form-urlencoded")
    assert recorded.status == 200
    assert engine.seen[0].headers["authorization"] == HEADERS["Authorization"]
    assert engine.seen[0].json == body
    assert engine.seen[0].query == query[1:]
    assert len(rows(tape)) == 1
    assert len(rows(tape, "control")) == 3
    assert SECRET not in everything(tape)


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_another_key_finds_the_same_recording(tmp_path, body):
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        recorded = ask(server.url, body, path=f"/v1/chat/completions?api_key={SECRET}&n=2")
    other = json.loads(json.dumps(body).replace(SECRET, "another"))
    with rolltape.serve(tmp_path / "tape", mode="replay") as server:
        replayed = ask(server.url, other, path="/v1/chat/completions?api_key=another&n=2")
    assert replayed.body == recorded.body


def test_what_a_model_reads_is_kept_whole(tmp_path):
    """A password in a conversation is data, and so is a field of a tool that is named like one."""
    schema = {"type": "object", "properties": {"token": {"type": "string"}}, "required": ["token"]}
    tools = [{"type": "function", "function": {"name": "login", "parameters": schema}}]
    body = chat(json.dumps({"password": "1234"}), tools=tools, max_tokens=3, stop_token_ids=[1])
    body["messages"].append({"role": "tool", "content": "x", "token": "word"})
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        ask(server.url, body)
    (row,) = rows(tmp_path / "tape")
    assert json.loads(row["request_body"]) == body
    assert row["prompt"] == body["messages"]


def test_a_key_that_says_who_asks_is_written_down_as_a_digest(tmp_path):
    tape = tmp_path / "tape"
    options = {"identity": ["Authorization", "body.api_key"]}
    with Engine() as engine, rolltape.serve(tape, engine.url, mode="record", **options) as server:
        recorded = {n: ask(server.url, chat("same"), Authorization=f"Bearer {SECRET}{n}").body for n in "ab"}
        ask(server.url, chat("other", api_key=SECRET))
    assert SECRET not in everything(tape)
    assert len({row["session"] for row in rows(tape)}) == 3
    with rolltape.serve(tape, mode="replay", order="none", **options) as server:
        for n in "ba":
            assert ask(server.url, chat("same"), Authorization=f"Bearer {SECRET}{n}").body == recorded[n]
    assert server.summary()["levels"]["identity"] == 2


def test_a_miss_does_not_tell_a_key(tmp_path):
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        ask(server.url, chat("hello", temperature=1.0, api_key=SECRET))
    with rolltape.serve(tmp_path / "tape", mode="replay") as server:
        missed = ask(server.url, chat("hello", temperature=0.5, api_key=SECRET))
    assert missed.status == 422
    assert "temperature" in missed.json["rolltape"]["differs"]
    assert SECRET not in json.dumps(server.summary()) + missed.body.decode()


def test_the_token_of_the_server_stays_with_it(tmp_path):
    token = "t-0123456789-of-this-server"
    with Engine() as engine, rolltape.serve(tmp_path / "t", engine.url, mode="record", token=token) as server:
        assert ask(server.url, chat("hello")).status == 401
        for n, headers in enumerate([{"X_Rolltape_Token": token}, {"Authorization": f"Bearer {token}"}]):
            assert ask(server.url, chat(f"{n}"), **headers).status == 200
        assert ask(server.url, chat("2"), path=f"/v1/chat/completions?token={token}&n=1").status == 200
        said = [repr(seen.headers) + seen.query for seen in engine.seen]
    assert len(said) == 3
    assert token not in "".join(said) + everything(tmp_path / "t")
