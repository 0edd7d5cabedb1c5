"""Samples of a tape as a Ray Data dataset, and datasets as tapes, on a cluster that loses nodes."""

from __future__ import annotations

import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import ray

import rolltape
import rolltape.ray
from rolltape.errors import BatchError, ConfigError, StepExistsError, StepMissingError
from rolltape.ray.step_writer import StepWriter
from rolltape.storage import LocalStorage, segmented
from rolltape.tape.manifest import new_manifest
from tests.cli_tapes import damage, file_of, record, run
from tests.compacting import folded
from tests.object_servers.fixtures import forget_credentials
from tests.object_servers.s3 import BUCKET
from tests.snippets import snippets
from tests.store.ray_nodes import _own_spool, kill_where, nodes, stall  # noqa: F401

STEPS = 5


@pytest.fixture(scope="module")
def s3_folder(s3_server):
    """A folder of the S3 server, which all nodes have the keys for: the cluster is started after it."""
    patch = pytest.MonkeyPatch()
    forget_credentials(patch, "AWS_")
    for name, value in s3_server.env().items():
        patch.setenv(name, value)
    yield f"s3://{BUCKET}/ray-data-{os.getpid()}"
    patch.undo()


@pytest.fixture(scope="module")
def cluster(s3_folder, _own_spool):  # noqa: F811
    with nodes(2, Path("/tmp") / f"d{os.getpid()}") as made:
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield made
    shutil.rmtree(f"/tmp/d{os.getpid()}", ignore_errors=True)


def batch(step):
    """Two samples each of three prompts, with padding on either side and columns of many kinds."""
    rng = np.random.default_rng(step)
    lengths = rng.integers(1, 7, 6)
    mask = (np.arange(6) < lengths[:, None]).astype(np.int64)
    return {
        "uid": [f"u{at // 2}" for at in range(6)],
        "responses": rng.integers(1, 2**40, (6, 6)) * mask,
        "response_mask": mask,
        "log_probs": (rng.normal(size=(6, 6)) * mask).astype(np.float32),
        "half": rng.normal(size=6).astype(np.float16),
        "reward": np.linspace(0, 1, 6) + step,
        "hidden": rng.normal(size=(6, 2, 3)),
        "text": [f"é {at} of {step}" for at in range(6)],
        "extra": [{"turns": at} if at % 2 else [at, None] for at in range(6)],
        "rank": np.arange(6),
    }


@pytest.fixture(scope="module")
def tape(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "base"
    with rolltape.Tape(folder, mode="record", background=False) as made:
        rollout = made.stage("rollout")(lambda value: value)
        for step in range(STEPS):
            with made.step(step):
                rollout(batch(step))
        with made.step(0, split="val"):
            rollout(batch(99))
    return folder


def in_order(rows):
    return sorted(rows, key=lambda row: (row["split"], row["step"], row["uid"], row["index"]))


def plain(value):
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def listed(dataset):
    return in_order([{name: plain(value) for name, value in row.items()} for row in dataset.take_all()])


def test_rows_are_those_of_an_export(cluster, tape, tmp_path):
    assert run("export", tape, "--to", tmp_path / "rows.jsonl", "--format", "jsonl").exit_code == 0
    exported = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    dataset = rolltape.ray.read(tape)
    assert dataset.count() == 6 * (STEPS + 1)
    found = in_order(dataset.take_all())
    for row, wanted in zip(found, in_order(exported), strict=True):
        wanted |= {"call": str(wanted["call"]), "recorded_rank": wanted["rank"], "rank": 0}
        wanted["extra"] = json.dumps(wanted["extra"])
        assert {name: plain(value) for name, value in row.items()} == wanted
    types = dict(zip(dataset.schema().names, dataset.schema().types, strict=True))
    assert types["log_probs"] == pa.list_(pa.float32())
    assert types["reward"] == pa.float64()
    assert types["step"] == pa.int64()


def test_only_what_is_asked_for_is_read(cluster, tape, tmp_path):
    """What nobody asked for may be damaged: it is not looked at. What is asked for never comes out wrong."""
    broken = tmp_path / "broken"
    shutil.copytree(tape, broken)
    damage(file_of(broken, 2), "log_probs")
    rewards = rolltape.ray.read(broken, columns=["reward"], split="train").take_all()
    assert [*rewards[0]] == ["step", "uid", "index", "split", "stage", "call", "rank", "reward"]
    assert len(rewards) == 6 * STEPS
    left = rolltape.ray.read(broken, columns=["log_probs"], where=pc.field("reward") > 3.5).take_all()
    assert sorted(row["step"] for row in left) == [0] * 6 + [3] * 3 + [4] * 6  # step 0 of val
    assert "reward" not in left[0]
    with pytest.raises(Exception, match=r"step_000002\.parquet") as told:
        rolltape.ray.read(broken, columns=["log_probs"]).take_all()
    assert "checksum" in str(told.value)


def test_files_that_their_names_rule_out_are_not_read(cluster, tape, tmp_path):
    some = tmp_path / "some"
    shutil.copytree(tape, some)
    dataset = rolltape.ray.read(some, where=(pc.field("step") == 3) & (pc.field("split") == "train"))
    assert [os.path.basename(name) for name in dataset.input_files()] == ["step_000003.parquet"]
    assert dataset.count() == 6
    assert rolltape.ray.read(some, steps="1,3-", split="train", columns=[]).count() == 18
    nothing = rolltape.ray.read(some, columns=["text"], where=pc.field("reward") > 1e9)
    assert nothing.count() == 0


def test_the_examples_of_the_guide_run(cluster, tmp_path, monkeypatch):
    """docs/ray.md, from top to bottom."""
    monkeypatch.chdir(tmp_path)
    record("runs/base")
    record("runs/packed")
    names: dict[str, object] = {}
    for snippet in snippets("docs/ray.md"):
        if snippet.language == "python":
            exec(compile(snippet.text, snippet.where, "exec"), names)
    assert names["best"].count() == 3
    assert names["run"].steps() == [0, 1, 2]
    assert names["report"].clean


def test_segments_are_read_by_ray_data_itself(cluster, tmp_path, monkeypatch, capsys):
    """docs/reading-with-other-tools.md: its block for Ray Data, on the tape of its first block, folded."""
    monkeypatch.chdir(tmp_path)
    blocks = [one for one in snippets("docs/reading-with-other-tools.md") if one.language == "python"]
    ours = next(one for one in blocks if "import ray" in one.text)
    exec(compile(blocks[0].text, blocks[0].where, "exec"), {})
    folded("runs/base")
    exec(compile(ours.text, ours.where, "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1] == "0.75"


def test_rows_of_a_folded_tape_are_those_of_a_plain_one(cluster, tape, s3_folder, tmp_path, monkeypatch):
    """In a directory and in a store; also those that a filter leaves, and those of single columns."""
    monkeypatch.setattr(segmented, "GRACE", 0.15)
    places = [str(tmp_path / "tape"), f"{s3_folder}/folded-{os.urandom(4).hex()}"]
    for place in places:
        assert run("push", tape, place).exit_code == 0
        folded(place)
    asked = [{}, {"columns": ["reward"], "steps": "1-2"}, {"where": pc.field("reward") > 3.5}]
    for options in asked:
        wanted = listed(rolltape.ray.read(tape, **options))
        assert wanted
        for place in places:
            assert listed(rolltape.ray.read(place, **options)) == wanted


def test_what_is_not_there_is_an_error(cluster, tape):
    with pytest.raises(StepMissingError, match="'nope'"):
        rolltape.ray.read(tape, "nope")
    with pytest.raises(StepMissingError):
        rolltape.ray.read(tape, steps="70-")
    with pytest.raises(ConfigError, match="no column 'nope'"):
        rolltape.ray.read(tape, columns=["nope"])
    with pytest.raises(ConfigError, match="nope"):
        rolltape.ray.read(tape, where=pc.field("nope") > 1)


def test_a_dataset_is_written_as_a_tape(cluster, tape, tmp_path):
    """The samples of the copy are those of the tape, bit for bit; what Arrow has no word for is said."""
    copy = rolltape.ray.write(rolltape.ray.read(tape).random_shuffle(seed=3), tmp_path / "copy")
    assert copy.steps() == [*range(STEPS)]
    assert copy.splits == ["train", "val"]
    entries = rolltape.compare(tape, copy).comparison.entries
    apart = {entry.name for entry in entries if str(entry.verdict) != "bitwise"}
    assert apart == {"half", "extra"}, "float16 is float32 there, values of no column are JSON"
    assert run("check", copy.path).exit_code == 0
    first = copy.samples(0)
    assert first["u1", 1]["reward"] == batch(0)["reward"][3]
    replay = rolltape.Tape(copy.path, mode="replay")
    with replay.step(2):
        value = replay.stage("rollout")(lambda: None)()
    assert value["log_probs"][3].dtype == np.float32
    assert value["text"] == batch(2)["text"]


def test_a_part_can_be_written_to_a_store_under_another_name(cluster, tape, s3_folder):
    best = rolltape.ray.read(tape, where=pc.field("reward") > 2.5, split="train", columns=["text", "reward"])
    made = rolltape.ray.write(best, f"{s3_folder}/best", stage="best", fingerprint={"kind": "best"})
    assert made.stages() == ["best"]
    assert made.steps("best") == [2, 3, 4]
    assert made.samples(2, "best").ids == [("u1", 1), ("u2", 0), ("u2", 1)], "who they were, they are"
    again = rolltape.ray.read(f"{s3_folder}/best", "best").take_all()
    assert sorted(row["text"] for row in again) == sorted(row["text"] for row in best.take_all())
    with pytest.raises(StepExistsError, match="already"):
        rolltape.ray.write(best, f"{s3_folder}/best")


def test_rows_that_cannot_be_told_apart_are_refused(cluster, tmp_path):
    rows = ray.data.from_items([{"step": 0, "uid": "a", "x": at} for at in range(2)])
    with pytest.raises(BatchError, match="same sample: uid 'a'"):
        rolltape.ray.write(rows, tmp_path / "twice")
    assert not (tmp_path / "twice/tape.json").exists(), "what is not whole is no tape"
    with pytest.raises(BatchError, match="'uid'"):
        rolltape.ray.write(ray.data.from_items([{"step": 0}]), tmp_path / "anonymous")


def test_a_task_that_runs_again_changes_nothing(tmp_path):
    """In any order of rows, and at the same time; other rows under the same name are refused."""
    storage = LocalStorage(tmp_path / "t")
    writer = StepWriter(storage, new_manifest({}), None, None)
    rows = pa.table(
        {
            "step": [7] * 4,
            "uid": [*"abab"],
            "index": pa.array([0, 1, 1, 0], pa.int32()),
            "x": [1.0, 2.0, 3.0, 4.0],
        }
    )
    writer.write_rows(rows)
    path = tmp_path / "t/train/rollout/step_000007.parquet"
    before = path.read_bytes(), path.stat().st_ino
    threads = [
        threading.Thread(target=writer.write_rows, args=(rows.take(order),))
        for order in ([3, 2, 1, 0], [1, 0, 3, 2], [0, 1, 2, 3])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (path.read_bytes(), path.stat().st_ino) == before
    with pytest.raises(StepExistsError):
        writer.write_rows(rows.set_column(3, "x", pa.array([1.0, 2.0, 3.0, 5.0])))


def test_a_node_that_is_lost_while_rows_are_written_costs_nothing(cluster, tape, tmp_path):
    note = tmp_path / "note"

    def stalls(table: pa.Table) -> pa.Table:
        stall(str(note))
        return table

    with ThreadPoolExecutor(1) as killer:
        lost = killer.submit(kill_where, cluster, note)
        rows = rolltape.ray.read(tape, columns=["reward", "text"]).map_batches(stalls, batch_format="pyarrow")
        copy = rolltape.ray.write(rows, tmp_path / "copy")
        assert lost.result()
    cluster.add_node(num_cpus=1)
    found = rolltape.compare(tape, copy).comparison.entries
    assert all(str(e.verdict) == "bitwise" for e in found if e.name in ("reward", "text"))
    assert copy.steps() == [*range(STEPS)]
