"""A damaged file is detected and named, or the data are the recorded ones; never a third thing.

Every single bit of small files that have every layout is flipped, and thousands of larger ones; files are cut
at every length, overwritten, stretched, and replaced by other things.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rolltape
from rolltape.codec.seal import seal
from tests.fixtures import content
from tests.fixtures.exact import digest
from tests.slow import killed_recorder as recorder
from tests.slow.damage import DETECTED, Patient, bounded
from tests.slow.soak import SOAKING, draw, each_round


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    with bounded():
        yield


LARGE = {
    "many row groups": lambda: content.padded(1_800, 40, 200),
    "many columns": lambda: {f"column{i}": content.noise(6, dtype="float32", salt=i) for i in range(400)},
    "long header": lambda: {"responses": ["a"], "note": [{"text": "x" * 50_000}, ["y" * 50_000]]},
    "large whole": lambda: {"responses": ["a", "b"], "weights": content.noise(300, 300, dtype="float32")},
}


@pytest.mark.parametrize("name", content.RECORDINGS)
def test_every_bit_of_a_small_file(name: str) -> None:
    patient = Patient(content.RECORDINGS[name]())
    sparse = 3 if name in ("dense", "wholes") and not SOAKING else 1  # long noise: every third bit will do
    patient.flip(range(0, 8 * patient.seal, sparse))
    patient.flip(range(8 * patient.seal, 8 * len(patient.data)))
    print(name, len(patient.data), "bytes", dict(patient.outcomes))


@each_round
@pytest.mark.parametrize("name", LARGE)
def test_bits_of_a_large_file(soak_round: int, name: str) -> None:
    patient = Patient(LARGE[name]())
    rng, size, seal = draw(name, soak_round), 8 * len(patient.data), 8 * patient.seal
    patient.flip(rng.randrange(seal) for _ in range(200))
    patient.flip(range(0, 8 * 16))
    patient.flip(range(seal, seal + 8 * 64))
    patient.flip(rng.randrange(seal, size) for _ in range(1000))
    patient.flip(range(size - 8 * 64, size))
    print(name, len(patient.data), "bytes", dict(patient.outcomes))


@each_round
def test_bits_of_any_recording(soak_round: int) -> None:
    """What is recorded is drawn anew in each round."""
    patient = Patient(recorder.rollout(soak_round, step=0, number=0))
    rng, size = draw("any", soak_round), 8 * len(patient.data)
    patient.flip(rng.randrange(size) for _ in range(300))
    column = rng.choice(list(patient.recording(patient.data).columns))
    patient.flip(
        (rng.randrange(size) for _ in range(300)), patient.part(column, slice(0, rng.randrange(1, 9)))
    )
    print(soak_round, column, len(patient.data), "bytes", dict(patient.outcomes))
    assert patient.outcomes["detected"]


@each_round
@pytest.mark.parametrize("name", ["rollout", "dense", "ragged", "plain"])
def test_flips_under_partial_reads(soak_round: int, name: str) -> None:
    """Damage elsewhere in the file may go unnoticed here; what is returned is right all the same."""
    patient = Patient(content.RECORDINGS[name]())
    rng, columns = draw(name, soak_round), list(patient.recording(patient.data).columns)
    for column in columns:
        some = slice(rng.randrange(3), rng.randrange(3, 7))
        bits = 8 * len(patient.data)
        patient.flip((rng.randrange(bits) for _ in range(4000 // len(columns))), patient.part(column, some))
    print(name, dict(patient.outcomes))
    assert patient.outcomes["detected"]
    assert patient.outcomes["harmless"]


@each_round
def test_flips_under_partial_reads_of_many_row_groups(soak_round: int) -> None:
    patient = Patient(content.padded(1_800, 40, 200))
    rng = draw("row groups", soak_round)
    for column in ("input_ids", "attention_mask", "position_ids", "advantages", "rewards", "uid"):
        first = rng.randrange(1_800)
        read = patient.part(column, slice(first, first + rng.randrange(900)))
        patient.flip((rng.randrange(8 * len(patient.data)) for _ in range(100)), read)
    print(dict(patient.outcomes))
    assert patient.outcomes["detected"]
    assert patient.outcomes["harmless"]


@pytest.mark.parametrize("name", ["rollout", "wholes", "nothing"])
def test_a_file_cut_short_at_any_length(name: str) -> None:
    patient = Patient(content.RECORDINGS[name]())
    for length in range(len(patient.data)):
        assert patient.try_damaged(patient.data[:length], f"cut to {length} bytes")
        assert patient.try_damaged(patient.data[length + 1 :], f"begins at {length + 1}") or name == "nothing"


@each_round
@pytest.mark.parametrize("name", content.RECORDINGS)
def test_bytes_overwritten_inserted_zeroed_and_appended(soak_round: int, name: str) -> None:
    patient = Patient(content.RECORDINGS[name]())
    data, rng = patient.data, draw(name, soak_round)
    for round_ in range(300):
        at, size = rng.randrange(len(data)), rng.choice([1, 2, 8, 64, 512])
        junk = rng.randbytes(size)
        patient.try_damaged(data[:at] + junk + data[at + size :], f"overwritten at {at}, round {round_}")
        patient.try_damaged(data[:at] + junk + data[at:], f"{size} inserted at {at}, round {round_}")
        patient.try_damaged(data[:at] + data[at + size :], f"{size} missing at {at}")
        patient.try_damaged(data[:at] + bytes(size) + data[at + size :], f"{size} zeroed at {at}")
        patient.try_damaged(data[:at] + b"\xff" * size + data[at + size :], f"{size} filled at {at}")
        patient.try_damaged(data + junk, f"{size} appended, round {round_}")
        start = at // 512 * 512
        patient.try_damaged(data[:start] + data[start + 512 :] + data[start : start + 512], "a block moved")
    patient.try_damaged(data + data, "twice")
    print(name, dict(patient.outcomes))


def test_lengths_that_lie() -> None:
    """The numbers that say how much to read, at their extremes, with everything else as it should be."""
    patient = Patient(content.padded())
    data = patient.data
    for value in (0, 1, 7, 8, 2**16, 2**31 - 1, 2**31, 2**32 - 1, len(data), len(data) - 8, len(data) - 12):
        number = value.to_bytes(4, "little")
        assert patient.try_damaged(data[:-8] + number + data[-4:], f"footer of {value} bytes")
        footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        assert patient.try_damaged(data[: footer - 8] + number + data[footer - 4 :], f"{value} chunks")


def test_a_file_of_a_newer_format_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolltape.codec.file.FORMAT", 2)
    newer = Patient(content.wholes())
    monkeypatch.undo()
    for read in (
        newer.read,
        newer.part("responses", slice(0, 1)),
        lambda data: newer.recording(data).verify(),
    ):
        with pytest.raises(
            rolltape.FormatVersionError, match=r"has format 2; .* reads up to 1(?s:.*)where: /memory/"
        ):
            read(newer.data)


def foreign() -> dict[str, bytes]:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"responses": [[1, 2], [3]], "_uid": ["a", "b"]}), sink)
    parquet = sink.getvalue().to_pybytes()
    return {
        "empty": b"",
        "one byte": b"P",
        "two magics": b"PAR1PAR1",
        "twelve bytes": b"PAR1\0\0\0\0PAR1",
        "text": b"once upon a time\n" * 99,
        "zeros": bytes(100_000),
        "parquet of another tool": parquet,
        "parquet of another tool, sealed": b"".join(map(bytes, seal(pa.py_buffer(parquet)))),
        "a small tail": parquet[-40:],
        "only a seal": b"PAR1RTSEAL01" + bytes(12) + b"PAR1",
    }


@pytest.mark.parametrize("name", foreign())
@pytest.mark.parametrize("mode", ["replay", "auto"])
def test_a_foreign_file_on_a_tape(tmp_path: Path, name: str, mode: str) -> None:
    """The whole way, through a real tape: an error that names the file, and the file stays as it is."""
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(content.padded)()
    file = tmp_path / "tape" / "train" / "rollout" / "step_000000.parquet"
    file.write_bytes(foreign()[name])
    tape = rolltape.Tape(tmp_path / "tape", mode=mode)
    generate = tape.stage("rollout")(content.padded)
    recording = tape.recording(0)
    with tape.step(0), pytest.raises(rolltape.CorruptFileError, match=str(file)):
        generate()
    for read in (
        recording.value,
        recording.verify,
        recording.batch,
        recording.identity,
        lambda: recording.samples,
    ):
        with pytest.raises(rolltape.CorruptFileError, match=str(file)):
            read()
    assert file.read_bytes() == foreign()[name]
    tape.close()


@pytest.mark.parametrize("name", ["train/metrics.jsonl", "tape.json"])
def test_every_bit_of_metrics_and_manifest(tmp_path: Path, name: str) -> None:
    settings = {"dir": tmp_path / "tape", "prefetch": False, "fingerprint": content.FINGERPRINT}
    with rolltape.Tape(**settings, mode="record") as tape:
        for step in range(3):
            tape.log(content.METRICS | {"step": float(step)}, step=step)

    def read() -> str:
        with rolltape.Tape(**settings, mode="replay") as tape:
            return digest([tape.metrics(), tape.manifest.fingerprint])

    expected, file = read(), tmp_path / "tape" / name
    data = bytearray(file.read_bytes())
    wrong, outcomes = [], Counter()
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        try:
            outcome = "harmless" if read() == expected else "wrong data"
        except (*DETECTED, rolltape.MismatchError) as error:  # another fingerprint is a loud mismatch
            outcome = "detected" if str(tmp_path / "tape") in str(error.where) else "not named"
        except Exception as error:
            outcome = type(error).__qualname__
        outcomes[outcome] += 1
        if outcome not in ("harmless", "detected"):
            wrong.append((outcome, bit, bytes(data[max(bit // 8 - 30, 0) : bit // 8 + 30])))
        data[bit // 8] ^= 1 << bit % 8
    print(name, dict(outcomes))
    assert not wrong, f"{len(wrong)} of {8 * len(data)}: {wrong[:: len(wrong) // 9 + 1]}"
