"""Objects that were renamed, swapped or copied from another tape are refused by name, as files are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

import rolltape
from rolltape.errors import MisplacedFileError, RolltapeError
from rolltape.reader.integrity import inspect
from rolltape.storage import ObjectStorage, storage_at
from rolltape.tape.compaction import compact
from rolltape.verify.rules.noise_floor import Floor, read_floor, write_floor
from tests.object_servers.s3 import BUCKET

STEP = "train/rollout/step_000001.parquet"
LINES = "train/.metrics.jsonl/"


def record(url: str) -> None:
    for split in ("train", "val"):
        with rolltape.Tape(url, mode="record", split=split) as tape:
            for stage in ("rollout", "reward"):
                name = f"MARK-{url[-1]}-{split}-{stage}"
                made = tape.stage(stage)(lambda n, name=name: {"uid": ["a"], "response": [f"{name}-{n}"]})
                for step in range(3):
                    with tape.step(step):
                        made(step)
                        tape.log({"said": f"{name}-metrics-{step}"})


@pytest.fixture
def bare(s3_url: str) -> S3Store:
    return S3Store(BUCKET, prefix=s3_url.removeprefix(f"s3://{BUCKET}/"), client_options={"allow_http": True})


@pytest.fixture
def tapes(s3_url: str) -> tuple[str, str]:
    for name in ("a", "b"):
        record(f"{s3_url}/{name}")
    return f"{s3_url}/a", f"{s3_url}/b"


def got(bare: S3Store, name: str) -> bytes:
    return bytes(obstore.get(bare, name).bytes())


def put_for(there: str, here: str) -> Callable[[S3Store], Any]:
    """Another object in the place of the one of tape a."""
    return lambda bare: obstore.put(bare, f"a/{here}", got(bare, there))


def swap(one: str, other: str) -> Callable[[S3Store], Any]:
    def act(bare: S3Store) -> None:
        first, second = got(bare, f"a/{one}"), got(bare, f"a/{other}")
        obstore.put(bare, f"a/{one}", second)
        obstore.put(bare, f"a/{other}", first)

    return act


@pytest.mark.parametrize(
    "plant",
    [
        put_for("a/train/rollout/step_000002.parquet", STEP),
        put_for(f"b/{STEP}", STEP),
        put_for("a/val/rollout/step_000001.parquet", STEP),
        swap("train/reward/step_000001.parquet", STEP),
        swap("train/rollout/step_000000.parquet", STEP),
    ],
    ids=["another step", "another tape", "another split", "stages swapped", "steps swapped"],
)
def test_a_recording_in_the_place_of_another(
    tapes: tuple[str, str], bare: S3Store, plant: Callable[[S3Store], Any], tmp_path: Any
) -> None:
    plant(bare)
    url = tapes[0]
    with rolltape.Tape(url, mode="replay", match={"inputs": "ignore"}) as tape:
        stage = tape.stage("rollout")(lambda: None)
        with pytest.raises(MisplacedFileError, match=r"step_00000[01]"), tape.step(1):
            stage()
    for read in (
        lambda: rolltape.open(url).samples(1).ids,
        lambda: [found.value() for found in rolltape.open(url).recordings("rollout", "train")],
        lambda: rolltape.open(url).seconds("rollout"),
    ):
        with pytest.raises(MisplacedFileError, match=r"step_00000[01]"):
            read()
    assert STEP in {f.file for f in inspect(storage_at(url)).findings if f.kind == "misplaced"}
    done = compact(storage_at(url), keep=0, settled=0)
    assert STEP in done.damaged


@pytest.mark.parametrize("folded", [False, True], ids=["lines", "folded"])
@pytest.mark.parametrize("there", ["b/train", "a/val"], ids=["another tape", "another split"])
def test_lines_of_elsewhere(tapes: tuple[str, str], bare: S3Store, there: str, folded: bool) -> None:
    url = tapes[0]
    if folded:
        for each in tapes:
            for split in ("train", "val"):
                assert ObjectStorage(each).lines.fold(f"{split}/metrics.jsonl")
    mine = [meta["path"] for batch in obstore.list(bare, f"a/{LINES}") for meta in batch]
    theirs = f"{there}/.metrics.jsonl/"
    for path in [meta["path"] for batch in obstore.list(bare, theirs) for meta in batch]:
        name = path.rpartition("/")[2]
        obstore.put(bare, f"a/{LINES}{name}", got(bare, f"{theirs}{name}"))
    assert mine
    with pytest.raises(MisplacedFileError, match=r"metrics\.jsonl"):
        rolltape.open(url).metrics()
    assert "train/metrics.jsonl" in {
        f.file for f in inspect(storage_at(url)).findings if f.kind == "misplaced"
    }


def test_a_note_of_another_tape(tapes: tuple[str, str], bare: S3Store) -> None:
    for url in tapes:
        write_floor(storage_at(url), Floor(2, "now", (), {("metrics", "loss"): 1.0}))
    assert read_floor(storage_at(tapes[0])) is not None
    put_for("b/noise.json", "noise.json")(bare)
    with pytest.raises(MisplacedFileError, match=r"noise\.json"):
        read_floor(storage_at(tapes[0]))
    with pytest.raises(RolltapeError, match=r"noise\.json"):
        rolltape.compare(*tapes)


def segments(bare: S3Store, tape: str, stage: str) -> list[str]:
    names = [meta["path"] for batch in obstore.list(bare, f"{tape}/train/{stage}/") for meta in batch]
    return [f"train/{stage}/{name.rpartition('/')[2]}" for name in names if "segment_" in name]


def test_segments_and_indexes_of_elsewhere(tapes: tuple[str, str], bare: S3Store) -> None:
    for url in tapes:
        assert not compact(storage_at(url), keep=0, settled=0).damaged
    mine, theirs = segments(bare, "a", "rollout")[0], segments(bare, "b", "rollout")[0]
    reward = segments(bare, "a", "reward")[0]
    whole = got(bare, f"a/{mine}")
    for other in (f"b/{theirs}", f"a/{reward}"):
        obstore.put(bare, f"a/{mine}", got(bare, other))
        for read in (
            lambda: rolltape.open(tapes[0]).samples(1).ids,
            lambda: [found.value() for found in rolltape.open(tapes[0]).recordings("rollout", "train")],
        ):
            with pytest.raises(RolltapeError) as refused:
                read()
            assert "MARK" not in str(refused.value)
        found = inspect(storage_at(tapes[0])).findings
        assert {f.kind for f in found if "/rollout/" in f.file} <= {"misplaced", "damaged", "segment"}
        assert len([f for f in found if f.file.startswith("train/rollout/step_")]) == 3
    obstore.put(bare, f"a/{mine}", whole)
    assert inspect(storage_at(tapes[0])).findings == []
    index = max(meta["path"] for batch in obstore.list(bare, "a/segments.index/") for meta in batch)
    name = "segments.index/" + index.rpartition("/")[2]
    obstore.put(bare, f"a/{name}", got(bare, f"b/{name}"))
    with pytest.raises(RolltapeError):
        rolltape.open(tapes[0]).samples(1).ids  # noqa: B018
    assert inspect(storage_at(tapes[0])).findings
