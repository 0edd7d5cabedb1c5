"""Lines appended to a store: none lost, none twice, in the order of each writer, whoever folds and dies."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.errors import CorruptFileError
from rolltape.storage import ObjectStorage
from rolltape.storage.store_lines import Head, Line, StoreLines, counted, packed_fold, parsed_fold
from tests.object_servers.fault_proxy import FaultProxy, Faults

NAME = "train/metrics.jsonl"
ROOT = Path(__file__).resolve().parents[2]

APPENDS = """
import sys
from rolltape.storage import ObjectStorage
from rolltape.storage.store_lines import StoreLines
url, me = sys.argv[1:]
storage = ObjectStorage(url)
storage.lines = StoreLines(storage._client, fold_after=7)
n = 0
while True:
    storage.append("train/metrics.jsonl", f"{me} {n}".encode())
    print(n, flush=True)
    n += 1
    if n == 60:
        break
"""


def folding(url: str, after: int = 5) -> ObjectStorage:
    storage = ObjectStorage(url)
    storage.lines = StoreLines(storage._client, fold_after=after)
    return storage


def assert_each_in_order(text: bytes, at_least: dict[str, int]) -> None:
    """Every writer's lines are there once each, in order, and as many as it was told."""
    lines = text.decode().splitlines()
    for writer, least in at_least.items():
        mine = [int(line.split()[1]) for line in lines if line.split()[0] == writer]
        assert mine == list(range(len(mine))), (writer, mine)
        assert len(mine) >= least
    assert len(set(lines)) == len(lines)


def test_writers_that_are_killed_while_they_append_and_fold(s3_url: str) -> None:
    processes = {
        str(me): subprocess.Popen(
            [sys.executable, "-c", APPENDS, s3_url, str(me)], stdout=subprocess.PIPE, text=True
        )
        for me in range(4)
    }
    told: Counter[str] = Counter()
    dice = random.Random(7)
    lives = {me: dice.randrange(5, 40) if me != "0" else 60 for me in processes}

    def follow(me: str) -> None:
        output = processes[me].stdout
        assert output
        for line in output:
            told[me] = int(line) + 1
            if told[me] == lives[me]:
                break
        processes[me].send_signal(signal.SIGKILL)
        processes[me].wait()
        output.close()

    threads = [threading.Thread(target=follow, args=(me,)) for me in processes]
    for thread in threads:
        thread.start()
    reader = ObjectStorage(s3_url)
    while any(thread.is_alive() for thread in threads):
        if reader.exists(NAME):
            assert_each_in_order(bytes(reader.read(NAME)), {})
    for thread in threads:
        thread.join()
    assert_each_in_order(bytes(reader.read(NAME)), dict(told))
    folding(s3_url).fold(NAME)
    assert_each_in_order(bytes(reader.read(NAME)), dict(told))
    seen = ObjectStorage(s3_url).lines.seen(NAME)
    assert seen.lines == []
    assert seen.done == []
    stat = reader.stat(NAME)
    assert stat is not None
    assert stat.size == len(reader.read(NAME))


def test_lines_and_folds_through_a_bad_network(s3_url: str, s3_proxy: FaultProxy) -> None:
    s3_proxy.faults = Faults(error=0.05, reset=0.05, lost=0.1, truncated=0.05)
    writers = [folding(s3_url) for _ in range(3)]

    def write(me: int) -> None:
        for count in range(25):
            writers[me].append(NAME, f"{me} {count}".encode())

    threads = [threading.Thread(target=write, args=(me,)) for me in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = bytes(ObjectStorage(s3_url).read(NAME))
    assert_each_in_order(text, {str(me): 25 for me in range(3)})
    assert text.count(b"\n") == 75


def test_a_line_that_comes_back_after_it_was_folded_does_not_count_again(s3_url: str) -> None:
    storage = folding(s3_url, after=1000)
    for count in range(3):
        storage.append(NAME, b"%d" % count)
    lines = storage.lines.seen(NAME).lines
    storage.fold(NAME)
    storage.lines.put(NAME, lines[1], b"1")
    assert storage.read(NAME) == b"0\n1\n2\n"
    storage.append(NAME, b"3")
    assert storage.read(NAME) == b"0\n1\n2\n3\n"
    assert storage.fold(NAME)
    assert ObjectStorage(s3_url).lines.seen(NAME).done == []
    assert storage.read(NAME) == b"0\n1\n2\n3\n"


def test_a_fold_that_was_made_too_late_counts_for_nothing(s3_url: str) -> None:
    """It is made of what was the latest, but by the time it is there two newer ones have come."""
    slow, quick = folding(s3_url, after=1000), folding(s3_url, after=1000)
    slow.append(NAME, b"0")
    before, text = slow.lines.read_seen(NAME)
    for count in (1, 2):
        quick.append(NAME, b"%d" % count)
        assert quick.fold(NAME)
    quick.append(NAME, b"3")
    assert not slow.lines._replace(NAME, before, text, gone=False)
    assert sorted(bytes(quick.read(NAME)).split()) == [b"0", b"1", b"2", b"3"]
    assert quick.fold(NAME)
    assert sorted(bytes(slow.read(NAME)).split()) == [b"0", b"1", b"2", b"3"]


def test_a_tape_that_other_tools_copied_there_goes_on(s3_url: str) -> None:
    import obstore
    from obstore.store import from_url

    obstore.put(from_url(s3_url, client_options={"allow_http": True}), NAME, b"one\ntwo\n")
    storage = folding(s3_url, after=2)
    assert storage.read(NAME) == b"one\ntwo\n"
    assert [stat.size for stat in storage.entries("train/")] == [8]
    for count in range(5):
        storage.append(NAME, b"%d" % count)
    assert storage.read(NAME) == b"one\ntwo\n0\n1\n2\n3\n4\n"
    storage.delete(NAME)
    assert not storage.exists(NAME)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6), st.integers(0, 9)), max_size=20),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 4)),
)
def test_what_counts_follows_without_a_gap(found: list[tuple[str, int, int]], before: dict[str, int]) -> None:
    lines = [Line(time, writer, count) for writer, count, time in found]
    following, old = counted(lines, before)
    for writer in "abc":
        counts = sorted(line.count for line in following if line.writer == writer)
        start = before.get(writer, 0)
        assert counts == list(range(start, start + len(counts)))
    assert all(line.count < before.get(line.writer, 0) for line in old)
    assert following == sorted(following)


@given(st.binary(), st.dictionaries(st.text("ab", max_size=3), st.integers(0, 9)), st.booleans())
def test_a_fold_is_read_as_it_was_written(text: bytes, writers: dict[str, int], gone: bool) -> None:
    head, found = parsed_fold(packed_fold(Head(writers, 5, len(text), gone), text), "here")
    assert found == text
    assert (head.writers, head.last, head.size, head.gone) == (writers, 5, len(text), gone)
    assert head.half == bool(text and not text.endswith(b"\n"))


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"x", b'{"writers":{},"last":1,"bytes":3,"crc":"0"}\nabc'])
def test_a_damaged_fold_is_an_error_and_never_a_shorter_text(damage: bytes) -> None:
    with pytest.raises(CorruptFileError):
        parsed_fold(damage, "here")
