"""What names a request and what of it does not count can be said, when it is recorded or later."""

from __future__ import annotations

import pytest

import rolltape
from tests.serve.engine import Engine, ask, chat, rows

WHEN = pytest.mark.parametrize("when", ["both", "replay only", "record only"])


def record(tape, bodies, **options):
    with Engine() as engine, rolltape.serve(tape, engine.url, mode="record", **options) as server:
        return [ask(server.url, body).text for body in bodies]


def at(when: str, options: dict) -> tuple[dict, dict]:
    return ({} if when == "replay only" else options), ({} if when == "record only" else options)


@WHEN
def test_a_volatile_field_does_not_count(tmp_path, when):
    recording, replaying = at(when, {"volatile": ["trace"]})
    (said,) = record(tmp_path / "tape", [chat("x", trace="1")], **recording)
    with rolltape.serve(tmp_path / "tape", mode="replay", **replaying) as server:
        found = ask(server.url, chat("x", trace="2"))
        assert found.status == (422 if when == "record only" else 200)
        if when == "record only":  # by its own rules the very same body is still found
            found = ask(server.url, chat("x", trace="1"))
        assert found.text == said


@WHEN
def test_a_field_of_the_body_names_the_session(tmp_path, when):
    recording, replaying = at(when, {"identity": ["body.task"]})
    said = record(tmp_path / "tape", [chat("x", task=name) for name in "abc"], **recording)
    sessions = [None] * 3 if when == "replay only" else ["a", "b", "c"]
    assert [row["session"] for row in rows(tmp_path / "tape")] == sessions
    with rolltape.serve(tmp_path / "tape", mode="replay", order="none", **replaying) as server:
        replayed = [ask(server.url, chat("x", task=name)).text for name in "cba"]
    if when == "replay only":  # it was not known who asked: the group is right as a whole
        assert sorted(replayed) == sorted(said)
    else:
        assert replayed == said[::-1]


def test_a_header_of_ones_own_names_the_session(tmp_path):
    with (
        Engine() as engine,
        rolltape.serve(tmp_path / "t", engine.url, mode="record", identity=["X-My-Task"]) as server,
    ):
        said = [ask(server.url, chat("x"), X_My_Task=name).text for name in "abc"]
    with rolltape.serve(tmp_path / "t", mode="replay", identity=["x-my-task"], order="none") as server:
        assert [ask(server.url, chat("x"), X_My_Task=name).text for name in "cab"] == [said[2], *said[:2]]
    assert server.summary()["levels"]["identity"] == 3


def test_what_does_not_change_the_answer_is_left_out_without_asking(tmp_path):
    names = ("user", "request_id", "rid", "prompt_cache_key", "metadata", "session_id")
    (said,) = record(tmp_path / "tape", [chat("x", **dict.fromkeys(names, "1"))])
    with rolltape.serve(tmp_path / "tape", mode="replay") as server:
        assert ask(server.url, chat("x", **dict.fromkeys(names, "2"))).text == said
    assert server.summary()["differs"] == {}


def test_fields_that_ought_to_be_the_same_are_counted(tmp_path):
    record(tmp_path / "tape", [chat("x", cache_salt="1", priority=3), chat("y", cache_salt="1")])
    with rolltape.serve(tmp_path / "tape", mode="replay") as server:
        assert ask(server.url, chat("x", cache_salt="2", priority=3)).status == 200
        assert ask(server.url, chat("y")).status == 200
    assert server.summary()["differs"] == {"cache_salt": 2}


def test_the_order_of_fields_and_the_spaces_between_them_do_not_count(tmp_path):
    (said,) = record(
        tmp_path / "tape", [b'{"model": "m", "messages": [{"role": "user", "content": "\\u00e9"}]}']
    )
    with rolltape.serve(tmp_path / "tape", mode="replay") as server:
        other = '{"messages":[{"content":"é","role":"user"}],"model":"m"}'.encode()
        assert ask(server.url, other).text == said


def test_a_slash_at_the_end_and_headers_do_not_count_and_a_query_does(tmp_path):
    (said,) = record(tmp_path / "tape", [chat("x")])
    with rolltape.serve(tmp_path / "tape", mode="replay") as server:
        assert ask(server.url, chat("x"), path="/v1/chat/completions?beta=1").status == 422
        found = ask(server.url, chat("x"), path="/v1/chat/completions/", User_Agent="other", X_Any="thing")
        assert found.text == said


@pytest.mark.parametrize("named", [True, False], ids=["same names", "random names"])
def test_in_auto_a_session_that_is_not_on_the_tape_takes_no_others_answer(tmp_path, named):
    """After a crash half of the sessions are on the tape; those that are not come first."""
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        first = "task-{}" if named else "5b0c1f{}e-26f1-4a0c-9d43-0d5d5f1c2a7b"
        said = {n: ask(server.url, chat("x"), X_Session_ID=first.format(n)).text for n in range(4)}
    second = first if named else "9e7d3a{}c-81b2-4c55-8a1e-7c90aa31d2f4"
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="auto") as server:
        order = [4, 5, 6, 7, 0, 1, 2, 3]
        again = {n: ask(server.url, chat("x"), X_Session_ID=second.format(n)).text for n in order}
        assert len(engine.seen) == 4
    if named:
        assert {n: again[n] for n in range(4)} == said
        with rolltape.serve(tmp_path / "tape", mode="replay", order="none") as server:
            assert {n: ask(server.url, chat("x"), X_Session_ID=first.format(n)).text for n in order} == again
    else:
        assert set(said.values()) < set(again.values())
