"""Changed recordings, tapes, metrics, dumps and gates: an error of ours, quickly, with nothing executed.

`make test` tries a few of each; `make fuzz` as many as EXAMPLES says, and five times as many dumps, with SEED
to begin from. What fails is given by its seed: `make fuzz SEED=123 EXAMPLES=1` has it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import resource
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.batch import dismantle
from rolltape.codec import file as codec_file
from rolltape.codec.file import encode
from rolltape.codec.pack import pack
from rolltape.errors import ConfigError, RolltapeError
from rolltape.importing.dump_reader import read_bytes
from rolltape.reader.acceptances import acceptances
from rolltape.reader.dropped_steps import read_dropped
from rolltape.reader.integrity import inspect
from rolltape.storage import LocalStorage
from rolltape.tape.checked_lines import checked_line
from rolltape.tape.current_run import current_run
from rolltape.tape.manifest import read_manifest
from rolltape.tape.metrics import read_all_metrics
from rolltape.tape.replayed import read_replayed
from rolltape.verify.rules.gate import parse
from rolltape.verify.rules.noise_floor import read_floor
from tests.exact import open_bytes
from tests.fuzz.corpus import FOUND, dumps, recordings
from tests.fuzz.mutation import bulky, flip, mutate, program
from tests.resealing import header_of, reseal_bytes, with_header

EXAMPLES = int(os.environ.get("ROLLTAPE_FUZZ_EXAMPLES", "0"))
SEED = int(os.environ.get("ROLLTAPE_FUZZ_SEED", "0"))
with contextlib.suppress(ImportError):
    import torch  # noqa: F401  (a file that holds tensors imports it, which is not what is measured)

LONGEST = 10.0
"""Seconds of the processor that one changed file may take; a busy machine makes them longer on the clock."""

MOST_MEMORY = 600 * 2**20
"""Bytes by which the process may grow: the limit that is set below, and what it takes to find out."""

FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
_watching: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching is not None and event in FORBIDDEN:
        _watching.append(f"{event}{arguments!r:.200}")


sys.addaudithook(_watch)


@contextmanager
def harmless(seed: int) -> Iterator[None]:
    """What happens here ends soon, in an error of ours or in none, and executes nothing."""
    global _watching
    _watching = []
    started = time.process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    try:
        yield
    except RolltapeError:
        pass
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    finally:
        seen, _watching = _watching, None
    assert not seen, f"seed {seed} executed {seen}"
    assert time.process_time() - started < LONGEST, f"seed {seed} took too long"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    assert grown < MOST_MEMORY, f"seed {seed} took {grown:,} bytes"


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLTAPE_MAX_MEMORY", "200MB")


def seeds(few: int, times: int = 1) -> range:
    """The seeds to try; ``times`` as many as EXAMPLES says where more is promised."""
    return range(SEED, SEED + (times * EXAMPLES or few))


def found(kind: str) -> list[Path]:
    return sorted(FOUND.glob(f"{kind}*"))


def _read_everything(data: bytes) -> None:
    for read in (
        lambda file: file.value(),
        lambda file: file.verify(),
        lambda file: [file.columns([name], 1, 3) for name in file.stored_columns],
        lambda file: file.identity(),
    ):
        try:
            read(open_bytes(data))
        except RolltapeError:
            continue


@contextmanager
def as_if_large(seed: int) -> Iterator[None]:
    """Every other recording is read as those are whose columns are large: from their pages, on threads."""
    with pytest.MonkeyPatch.context() as patch:
        if seed % 2:
            patch.setattr(codec_file, "DECODE_APART_FROM", 0)
            patch.setattr(codec_file, "SHARE_FROM", 0)
        yield


def test_recordings_with_another_header() -> None:
    sources = recordings()
    read = 0
    for seed in seeds(300):
        draw = random.Random(seed)
        source = draw.choice(sources)
        try:
            text = json.dumps(mutate(header_of(source), draw))
        except RecursionError:  # deeper than JSON can be written
            continue
        with harmless(seed), as_if_large(seed):
            _read_everything(with_header(source, text))
        read += 1
    assert read > len(seeds(300)) / 2


def test_recordings_with_other_bytes() -> None:
    sources = recordings()
    read = 0
    for seed in seeds(150):
        draw = random.Random(seed)
        source = draw.choice(sources)
        at = source.rindex(b"RTSEAL01")
        try:
            changed = reseal_bytes(flip(source[:at], draw) + source[at:])
        except Exception:  # so broken that it cannot be sealed
            continue
        with harmless(seed), as_if_large(seed):
            _read_everything(changed)
        read += 1
    assert read > len(seeds(150)) / 2


def test_dumps() -> None:
    sources = dumps()
    for seed in seeds(400, times=5):
        draw = random.Random(seed)
        kind = draw.random()
        if kind < 0.5:
            data = program(draw)
        elif kind < 0.999:
            data = flip(draw.choice(sources), draw)
        else:
            data = pickle.dumps(bulky(draw), 4)
        with harmless(seed):
            value = read_bytes(data, "dump")
            _read_everything(b"".join(encode(pack(dismantle(value)))))


@pytest.mark.parametrize("file", found("dump"), ids=lambda file: file.name)
def test_dumps_that_did_harm_once(file: Path) -> None:
    with harmless(0):
        read_bytes(file.read_bytes(), str(file))


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "t"
    with rolltape.Tape(folder, mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"uid": ["a"], "reward": [1.0]})()
        tape.log({"loss": 0.5, "nan": float("nan"), "text": "x"})
    return folder


def _fuzz_text(
    file: Path, few: int, change: Callable[[Any, random.Random], bytes], read: Callable[[], Any]
) -> None:
    before = file.read_bytes()
    try:
        for seed in seeds(few):
            draw = random.Random(seed)
            file.write_bytes(flip(before, draw) if draw.random() < 0.3 else change(before, draw))
            with harmless(seed):
                read()
    finally:
        file.write_bytes(before)


def _as_json(before: bytes, draw: random.Random) -> bytes:
    try:
        return json.dumps(mutate(json.loads(before), draw)).encode("utf-8", "surrogatepass")
    except RecursionError:
        return b"[" * 100_000


def test_tape_json(tape: Path) -> None:
    def read() -> None:
        inspect(LocalStorage(tape))
        read_manifest(LocalStorage(tape))
        rolltape.open(tape).samples(0)

    _fuzz_text(tape / "tape.json", 60, _as_json, read)


def _line(before: bytes, draw: random.Random) -> bytes:
    node = json.loads(before.splitlines()[0])
    del node["crc"], node["bytes"]
    try:
        body = json.dumps(mutate(node, draw), separators=(",", ":")).encode()[1:]
    except RecursionError:
        body = b'"step":0,"metrics":' + b"[" * 100_000
    return b'{"crc":"%08x","bytes":%d,' % (zlib.crc32(body), len(body)) + body + b"\n"


def test_metrics(tape: Path) -> None:
    def read() -> None:
        inspect(LocalStorage(tape))
        read_all_metrics(LocalStorage(tape), "train", [])
        rolltape.open(tape).metrics()

    _fuzz_text(tape / "train/metrics.jsonl", 60, _line, read)


def _sealed(node: dict[str, Any]) -> bytes:
    return checked_line(node) + b"\n"


def _plain(node: dict[str, Any]) -> bytes:
    return json.dumps(node).encode() + b"\n"


NOTES: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], bytes]]] = {
    "runs.jsonl": ({"run": "a", "rank": 0, "world_size": 1, "launch": "x", "cleared": True}, _sealed),
    "noise.json": (
        {"runs": 2, "measured": "now", "command": ["x"], "errors": [["s", "n", 0.5]], "means": [],
         "carried": [["s", "n", [[1, 0.5]]]]}, _plain,
    ),
    "accepted.jsonl": (
        {"author": "a", "reason": "r", "before": "b", "candidate": "c", "verdict": "v", "when": "w"}, _plain,
    ),
    "replayed.jsonl": ({"path": "train/rollout/step_000000.parquet", "digest": "0"}, _plain),
    "dropped.jsonl": ({"split": None, "stage": "rollout", "steps": "0-9", "others": False}, _plain),
}  # fmt: skip
"""Notes beside the recordings: what one says, and how it is written."""


@pytest.mark.parametrize("name", NOTES)
def test_notes(tape: Path, name: str) -> None:
    """Each reader is asked on its own: what one refuses must not keep the others from it."""
    storage = LocalStorage(tape)
    node, write = NOTES[name]

    def change(_: bytes, draw: random.Random) -> bytes:
        try:
            changed = mutate(node, draw)
            line = write(changed) if isinstance(changed, dict) else json.dumps(changed).encode() + b"\n"
        except (RecursionError, ValueError):
            line = b'{"run":' + b"[" * 100_000 + b"\n"
        return line + write(node)

    def read() -> None:
        for ask in (
            inspect, current_run, read_floor, acceptances, read_replayed, read_dropped,
            lambda _: rolltape.open(tape).samples(0), lambda _: rolltape.open(tape).metrics(),
        ):  # fmt: skip
            with contextlib.suppress(RolltapeError):
                ask(storage)

    (tape / name).write_bytes(write(node))
    try:
        _fuzz_text(tape / name, 60, change, read)
    finally:
        (tape / name).unlink()


GATE = {"rules": [{"match": "loss/*", "atol": 1e-3, "rtol": 0.1}], "noise": 2, "ignore": ["x"]}


def test_rules_that_are_no_list_and_limits_that_are_no_numbers() -> None:
    for config in ({"rules": 64}, {"rules": "x"}, {"rules": [{"match": "x", "atol": 10**400}]}):
        with pytest.raises(ConfigError):
            parse(config)


def test_gates() -> None:
    for seed in seeds(100):
        try:
            config = mutate(GATE, random.Random(seed))
        except RecursionError:
            continue
        if isinstance(config, dict):
            with harmless(seed):
                parse(config)
