"""The index of recorded calls: what it reads is not kept, and bodies are known by where they were sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rolltape.policy import Mode
from rolltape.reader.run import open
from rolltape.serving import asked as asking
from rolltape.serving.asked import PLAIN, Asked, Naming
from rolltape.serving.call import Call
from rolltape.serving.call_writer import CallWriter
from rolltape.serving.dialects import find
from rolltape.serving.lookup import FILES_OF_BODIES, Lookup
from rolltape.serving.miss import explain
from rolltape.serving.request_path import locate
from rolltape.settings import Settings
from rolltape.storage import LocalStorage
from rolltape.tape.opening import open_tape
from rolltape.tape.recording import Recording

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def asked(path: str, body: dict[str, Any]) -> Asked:
    raw = json.dumps(body).encode()
    keys = asking.keys_of("POST", path, body, PLAIN)
    return Asked("POST", path, "", raw, asking.raw_digest(raw), keys, find("POST", path))


def record(folder: Path, requests: list[Asked], answer: bytes = b"{}") -> Path:
    storage = LocalStorage(str(folder))
    writer = CallWriter(storage, open_tape(storage, Settings(dir=str(folder), mode=Mode.RECORD)), "train")
    for at, request in enumerate(requests):
        writer.add(
            Call(request, "calls", 0, "0", 0, 2 * at, 0.0, 200, {}, [answer[:7], answer[7:]], [0.1, 0.2],
                 2 * at + 1, 0.2)
        )  # fmt: skip
    writer.close()
    assert writer.failure is None
    return folder


def test_the_same_body_sent_to_two_endpoints_is_read_as_each_of_them_reads_it(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    both = [asked(CHAT, {"messages": said}), asked(COMPLETIONS, {"messages": said})]
    assert both[0].raw == both[1].raw
    assert [one.keys.answered for one in both] == [True, False], "only one of them takes messages"
    lookup = Lookup(open(str(record(tmp_path / "tape", both))), "calls")
    for one in both:
        assert lookup.known[one.path, one.raw].answered == one.keys.answered


@pytest.mark.parametrize(
    ("path", "session"),
    [
        ("/ng-rollout/12-3/training-token-capture/v1/responses", "12-3/training-token-capture"),
        ("/sessions/task/7:0/v1/chat/completions", "task/7:0"),
        ("/sessions/task:0/v1/chat/completions", "task:0"),
    ],
)
def test_an_identity_in_the_path_has_as_many_parts_as_it_likes(path: str, session: str) -> None:
    place = locate(path)
    assert (place.session, place.lost) == (session, False)


def test_answers_that_were_read_are_in_memory_no_longer_than_the_cache_has_them(tmp_path: Path) -> None:
    requests = [asked(CHAT, {"prompt": at}) for at in range(40)]
    tape = record(tmp_path / "tape", requests, b"an answer that comes in two pieces")
    lookup = Lookup(open(str(tape)), "calls", memory=1)
    for file in range(len(lookup._recordings)):
        answers = lookup.load(file)
        assert [one.chunks for one in answers] == [[b"an answ", b"er that comes in two pieces"]] * len(
            answers
        )
        lookup.keep(file, answers)
    for slot, request in zip(lookup.slots, requests, strict=True):
        assert lookup.request_body(slot) == request.body
    assert all("file" not in vars(recording) for recording in lookup._recordings)
    assert len(lookup._cache) <= 1
    assert len(lookup._bodies) <= FILES_OF_BODIES


def test_other_rules_of_what_counts_read_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [asked(CHAT, {"messages": [], "seed": at, "trace": at}) for at in range(60)]
    tape = record(tmp_path / "tape", requests)
    read: list[Any] = []
    batch = Recording.batch
    monkeypatch.setattr(Recording, "batch", lambda self, *args: read.append(args) or batch(self, *args))
    naming = Naming(volatile=frozenset({"trace"}))
    lookup = Lookup(open(str(tape)), "calls", naming=naming)
    files = len(lookup._recordings)
    assert len(read) == 2 * files, "the digests, and the bodies that have to be digested anew"
    wanted = {asking.keys_of("POST", CHAT, json.loads(one.body), naming).body for one in requests}
    assert {slot.body for slot in lookup.slots} == wanted


def test_the_nearest_recordings_are_found_and_files_are_read_once_for_all_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = {"role": "system", "content": "be kind"}
    said = [[system, {"role": "user", "content": f"question {at}"}] for at in range(30)]
    longer = [*said[7], {"role": "assistant", "content": "yes"}, {"role": "user", "content": "why?"}]
    requests = [asked(CHAT, {"messages": messages}) for messages in [*said, longer, []]]
    lookup = Lookup(open(str(record(tmp_path / "tape", requests))), "calls")
    read: list[Any] = []
    batch = Recording.batch
    monkeypatch.setattr(Recording, "batch", lambda self, *args: read.append(args) or batch(self, *args))
    wanted = asked(CHAT, {"messages": [*longer[:3], {"role": "user", "content": "how?"}]})
    shared = [common for _, common in lookup.shared(wanted.keys.prefixes)]
    assert shared == [1] * 7 + [2] + [1] * 22 + [3, 0]
    assert [common for _, common in lookup.shared(())] == [0] * 32
    assert len(read) == len(lookup._recordings)
    miss = explain(lookup, wanted, PLAIN, None, "0")
    assert miss.nearest is not None
    assert miss.nearest["arrival"] == 60
    assert miss.differs["message"] == 3
