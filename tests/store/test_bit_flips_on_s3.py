"""A damaged object is detected and named, or the data are the recorded ones; never a third thing.

As tests/slow/test_bit_flips.py has it of files, with every damaged recording put into a real store and read
back from there. `make test` samples 2,000 bits and lengths; `make soak` has all of them.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import obstore
import pyarrow.parquet as pq
import pytest
from obstore.store import from_url

import rolltape
from rolltape.storage import ObjectStorage
from tests.fixtures import content
from tests.fixtures.exact import digest
from tests.slow.damage import KEY, Patient
from tests.slow.soak import FIRST, SOAKING, draw, each_round

BITS, LENGTHS = 140, 60
"""Of each recording, in a round; there are ten recordings."""
PARTS = 4
"""In which all bits of a recording are flipped, and it is cut to all lengths."""


@pytest.fixture
def patient_of(s3_url: str) -> Callable[[str], Patient]:
    """A recording of the collection, in the store."""
    store, storage = from_url(s3_url, client_options={"allow_http": True}), ObjectStorage(s3_url)

    def keep(data: bytearray) -> ObjectStorage:
        obstore.put(store, KEY.path, bytes(data), use_multipart=False)
        return storage

    return lambda name: Patient(content.RECORDINGS[name](), keep)


@each_round
@pytest.mark.parametrize("name", content.RECORDINGS)
def test_bits_and_lengths_of_any_recording(
    soak_round: int, name: str, patient_of: Callable[[str], Patient]
) -> None:
    patient, rng = patient_of(name), draw("store", name, soak_round)
    size = len(patient.data)
    patient.flip(rng.randrange(8 * size) for _ in range(BITS))
    for length in rng.sample(range(size), LENGTHS):
        assert patient.try_damaged(patient.data[:length], f"cut to {length} bytes")
    print(name, size, "bytes", dict(patient.outcomes))
    assert patient.outcomes["detected"] >= LENGTHS


if SOAKING:

    @pytest.mark.parametrize("part", range(PARTS))
    @pytest.mark.parametrize("name", content.RECORDINGS)
    def test_every_bit_and_every_length(name: str, part: int, patient_of: Callable[[str], Patient]) -> None:
        patient = patient_of(name)
        size = len(patient.data)
        patient.flip(range(part, 8 * size, PARTS))
        for length in range(part, size, PARTS):
            assert patient.try_damaged(patient.data[:length], f"cut to {length} bytes")
        print(name, size, "bytes", dict(patient.outcomes))


@pytest.mark.parametrize("mode", ["replay", "auto"])
def test_a_replay_names_the_object_and_the_column(s3_url: str, mode: str) -> None:
    """The whole way, through a tape: the stage is not called instead, and the object stays as it is."""
    with rolltape.Tape(s3_url, mode="record") as tape, tape.step(0):
        recorded = digest(tape.stage("rollout")(content.padded)())
    store, rng = from_url(s3_url, client_options={"allow_http": True}), draw("columns", FIRST)
    whole = bytes(obstore.get(store, KEY.path).bytes())

    def replay() -> Any:
        def live() -> Any:
            raise AssertionError("a replay generated")

        with rolltape.Tape(s3_url, mode=mode, prefetch=False) as tape, tape.step(0):
            return tape.stage("rollout")(live)()

    errors = {}
    for column, (first, last) in chunks(whole).items():
        data = bytearray(whole)
        data[rng.randrange(first, last)] ^= 1 << rng.randrange(8)
        obstore.put(store, KEY.path, bytes(data))
        try:
            assert digest(replay()) == recorded, column
        except rolltape.CorruptFileError as error:
            errors[column] = error
        with pytest.raises(rolltape.CorruptFileError, match=f"column '{column}'"):
            rolltape.open(s3_url).recording(KEY).verify()
        assert bytes(obstore.get(store, KEY.path).bytes()) == data
    assert len(errors) >= 5, "a replay does not read the identities, but it reads the columns"
    for column, error in errors.items():
        assert error.where == f"{s3_url}/{KEY.path}"
        assert f"column {column!r}" in str(error)
    obstore.put(store, KEY.path, whole)
    assert digest(replay()) == recorded


def chunks(data: bytes) -> dict[str, tuple[int, int]]:
    """Where the bytes of each column are."""
    group = pq.read_metadata(io.BytesIO(data)).row_group(0)
    found = {}
    for column in map(group.column, range(group.num_columns)):
        first = column.dictionary_page_offset or column.data_page_offset
        found[column.path_in_schema.split(".")[0]] = (first, first + column.total_compressed_size)
    return found
