"""What a name or a line promises is not looked for: work is in proportion to what is there."""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rolltape
from rolltape.config_file import load_file
from rolltape.errors import (
    ConfigError,
    CorruptFileError,
    KeyNameError,
    MemoryLimitError,
    RolltapeError,
    UnsupportedValueError,
)
from rolltape.key import MAX_WORLD, Key
from rolltape.reader import listing
from rolltape.reader.acceptances import acceptances
from rolltape.reader.dropped_steps import read_dropped
from rolltape.reader.integrity import MOST_LINES, inspect
from rolltape.storage import LocalStorage, storage_at
from rolltape.storage.segment_index import SegmentIndex, read_index
from rolltape.tape.checked_lines import LONGEST
from rolltape.tape.compaction import compact
from rolltape.tape.current_run import current_run
from rolltape.tape.replayed import read_replayed
from rolltape.tape.shards import shortfall_of
from rolltape.verify.rules.noise_floor import read_floor
from tests.cli_tapes import run

METRICS = "train/metrics.jsonl"


@contextmanager
def quickly(seconds: float = 10.0) -> Iterator[None]:
    started = time.process_time()
    yield
    assert time.process_time() - started < seconds


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = tape.stage("rollout")(lambda: {"uid": ["a"], "response": ["x"]})
        for step in range(3):
            with tape.step(step):
                rollout()
                tape.log({"loss": step / 3})
    return tmp_path / "t"


def checked(body: bytes) -> bytes:
    return b'{"crc":"%08x","bytes":%d,' % (zlib.crc32(body), len(body)) + body + b"\n"


@pytest.mark.parametrize("world", [MAX_WORLD, MAX_WORLD + 1, 10**9, 10**18])
def test_shards_and_commits_of_very_many_ranks(tape: Path, world: int) -> None:
    folder = tape / "train/rollout"
    for step in range(10, 110):
        (folder / f"step_{step:06d}.r0of{world}.parquet").touch()
        (folder / f"step_{step + 200:06d}.of{world}.commit").write_bytes(checked(b'"attempts":["a"]}'))
        (folder / f"step_{step + 400:06d}.of{world}.void").touch()
    with quickly():
        opened = rolltape.open(tape)
        assert opened.steps("rollout") == [0, 1, 2]
        assert opened.samples(1).ids
        assert "0-2" in run("ls", tape).stdout
        assert len(inspect(LocalStorage(tape)).findings) >= 300
        if world <= MAX_WORLD:
            assert shortfall_of(LocalStorage(tape), Key(step=10, world_size=world)) is not None
            assert "…" in str(opened.incomplete("rollout")[0])


def test_a_run_of_more_ranks_than_there_can_be_is_refused() -> None:
    with pytest.raises(KeyNameError, match="world_size must be at most"):
        Key(step=0, world_size=MAX_WORLD + 1)


@pytest.mark.parametrize(
    "name", ["step_000007.bak.parquet", "step_0000007.parquet", "step_000007.c0.parquet",
             "step_000007.r5of3.parquet", "step_000007.r0of1.parquet", "step_000007.in.in.parquet"],
)  # fmt: skip
def test_a_name_that_no_recording_has_is_no_step(tape: Path, name: str) -> None:
    (tape / "train/rollout" / name).write_bytes((tape / "train/rollout/step_000001.parquet").read_bytes())
    assert rolltape.open(tape).steps("rollout") == [0, 1, 2]
    assert [finding.kind for finding in inspect(LocalStorage(tape)).findings] == ["foreign"]


def test_a_line_that_is_longer_than_any(tape: Path) -> None:
    (tape / METRICS).write_bytes(checked(b'"step":0,"metrics":{"a":[' + b"[]," * (LONGEST // 3) + b"0]}}"))
    with quickly():
        with pytest.raises(CorruptFileError, match=r"metrics\.jsonl, line 1"):
            rolltape.open(tape).metrics()
        assert [finding.kind for finding in inspect(LocalStorage(tape)).findings] == ["metrics"]


def test_a_line_that_cannot_be_read_is_not_copied(tape: Path) -> None:
    """A file of a gigabyte takes that gigabyte once, and not again for its one line."""
    before = (tape / METRICS).read_bytes()
    with (tape / METRICS).open("ab") as file:
        file.write(b'{"crc":"00000000","bytes":99999999,')
        file.truncate(len(before) + 2**26)
    tracemalloc.start()
    try:
        damaged: list[RolltapeError] = []
        logged = rolltape.open(tape).metrics("train", 0, damaged)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * 2**26
    assert logged
    assert [error.what for error in damaged] == [f"a line has {2**26:,} bytes; the longest has {LONGEST:,}"]
    (finding,) = inspect(LocalStorage(tape)).findings
    assert finding.message.endswith(f"has {2**26:,} bytes; the longest has {LONGEST:,}")


@pytest.mark.parametrize("name", ["runs.jsonl", "accepted.jsonl", "replayed.jsonl", "dropped.jsonl"])
def test_a_line_of_a_note_that_is_longer_than_any_is_not_parsed(
    tape: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tape / name).write_bytes(b'{"path":[' + b"[]," * (LONGEST // 3) + b"0]}\n{}\n")
    parsed: list[int] = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text, **how: (parsed.append(len(text)), loads(text, **how))[1])
    storage = LocalStorage(tape)
    for ask in (current_run, acceptances, read_replayed, read_dropped, inspect):
        with contextlib.suppress(RolltapeError):
            ask(storage)
    assert max(parsed) < LONGEST


def test_a_noise_floor_takes_no_more_memory_than_there_may_be(
    tape: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tape / "noise.json").write_bytes(b'{"runs": 2, "errors": [' + b"[]," * 2**20 + b"0]}")
    monkeypatch.setenv("ROLLTAPE_MAX_MEMORY", "30MB")
    with pytest.raises(MemoryLimitError, match="noise floor"):
        read_floor(LocalStorage(tape))


def test_metrics_that_would_be_such_a_line_are_not_logged(tape: Path) -> None:
    with rolltape.Tape(tape, mode="auto") as opened:
        with pytest.raises(UnsupportedValueError, match="record data as a stage"), opened.step(8):
            opened.log({"text": "x" * LONGEST})
        with opened.step(9):
            opened.log({"loss": 1.0})
    assert rolltape.open(tape).metrics()[9] == {"loss": 1.0}


def test_metrics_beyond_the_limit_of_memory(tape: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tape / METRICS).open("ab") as file:
        file.write(checked(b'"step":3,"metrics":{"a":1}}') * 20_000)
    monkeypatch.setenv("ROLLTAPE_MAX_MEMORY", "2MB")
    with pytest.raises(MemoryLimitError, match=r"metrics\.jsonl"):
        rolltape.open(tape).metrics()


def test_lines_without_anything_cost_nothing(tape: Path) -> None:
    for name in (METRICS, "runs.jsonl", "dropped.jsonl", "accepted.jsonl"):
        with (tape / name).open("ab") as file:
            file.write(b"\n" * 5_000_000)
    with quickly():
        assert set(rolltape.open(tape).metrics()) == {0, 1, 2}
        assert inspect(LocalStorage(tape)).findings == []


def test_a_hundred_thousand_damaged_lines_are_few_findings(tape: Path) -> None:
    with (tape / METRICS).open("ab") as file:
        file.write(b"no line of metrics\n" * 100_000)
    with quickly():
        found = inspect(LocalStorage(tape)).findings
    assert len(found) == MOST_LINES + 1
    assert "99,980 more lines" in found[-1].message


@pytest.mark.parametrize(
    "body",
    [
        b'"session":[1],"rank":0,"world_size":2}', b'"session":"a","rank":{},"world_size":2}',
        b'"session":"a","world_size":2}', b'"run":"a","rank":0}', b'"run":' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_a_line_about_a_run_says_is_checked(tape: Path, body: bytes) -> None:
    (tape / "runs.jsonl").write_bytes(checked(body))
    with pytest.raises(CorruptFileError, match=r"runs\.jsonl, line 1"):
        rolltape.open(tape).steps("rollout")
    assert [(f.kind, f.file) for f in inspect(LocalStorage(tape)).findings] == [("damaged", "runs.jsonl")]


def test_notes_that_cannot_be_read_are_found(tape: Path) -> None:
    (tape / "noise.json").write_text("[" * 100_000)
    (tape / "accepted.jsonl").write_text(json.dumps({"author": 1}) + "\n")
    (tape / "replayed.jsonl").write_text("?\n{}\n")
    found = {(finding.kind, finding.file) for finding in inspect(LocalStorage(tape)).findings}
    assert found == {("damaged", name) for name in ("noise.json", "accepted.jsonl", "replayed.jsonl")}


def test_an_index_that_lists_metrics_does_not_end_a_check(tape: Path) -> None:
    assert not compact(storage_at(tape), keep=0, settled=0).damaged
    (tape / METRICS).unlink()
    file = max((tape / "segments.index").iterdir())
    data = file.read_bytes()
    index = read_index(data, len(data), int(file.name), lambda offset, length: data[offset : offset + length])
    segment, place = next(iter(index.segments.values())), next(index.items())[1]
    lying = SegmentIndex(index.generation - 1, (), {}).with_segment(segment, {METRICS: (place.offset, 9)})
    file.write_bytes(lying.to_bytes())
    assert [(f.kind, f.file) for f in inspect(storage_at(tape)).findings] == [("metrics", METRICS)]


def test_a_gate_of_megabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "gate.yaml").write_text("require:\n" + "- x\n" * 2**20)
    with quickly(), pytest.raises(ConfigError, match=r"gate\.yaml"):
        load_file(tmp_path / "gate.yaml")


def test_many_folders_are_each_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for one stage does not go through all of them: many folders cost as much as there are."""
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"uid": ["x"]})()
    for number in range(200):
        (tmp_path / f"t/train/stage{number}").mkdir()
        (tmp_path / f"t/split{number}").mkdir()
    parsed = 0
    real = listing.is_name

    def counted(name: str) -> bool:
        nonlocal parsed
        parsed += 1
        return real(name)

    monkeypatch.setattr(listing, "is_name", counted)
    opened = rolltape.open(tmp_path / "t")
    assert opened.stages("train") == ["rollout"]
    assert opened.steps("rollout") == [0]
    assert opened.steps("nowhere") == []
    assert parsed < 2000
