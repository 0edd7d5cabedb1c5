"""One damaged file is shown where it is, and the rest of the run works."""

import json
import os
import shutil

import httpx
import numpy as np
import pytest

import rolltape
from rolltape.cli.app import app as cli
from rolltape.viewer.library import Library
from tests.viewer.serving import serve


@pytest.fixture
def tape(tmp_path):
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = tape.stage("rollout")(
            lambda: {"uid": ["a", "b"], "response": ["x", "y"], "reward": [0.0, 1.0]}
        )
        loss = tape.stage("loss")(lambda: {"uid": ["a", "b"], "loss": np.arange(2.0)})
        for step in range(3):
            with tape.step(step):
                rollout(), loss()
                tape.log({"pg_loss": step})
    return tmp_path / "t"


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


def test_a_cut_recording_is_damage_of_its_own_step(tape):
    cut(tape / "train/rollout/step_000000.parquet")
    with serve(Library([str(tape)])) as address:
        assert httpx.get(f"{address}/t/0").status_code == 200
        assert httpx.get(f"{address}/t/0/train/rollout/1").status_code == 200
        assert httpx.get(f"{address}/series/0/train/rollout").status_code == 200
        answer = httpx.get(f"{address}/t/0/train/rollout/0")
        assert "step_000000.parquet" in answer.text


def test_a_cut_recording_of_another_stage_is_left_out_and_told(tape):
    cut(tape / "train/loss/step_000000.parquet")
    with serve(Library([str(tape)])) as address:
        answer = httpx.get(f"{address}/t/0/train/rollout/0")
        assert answer.status_code == 200
        assert "left out: loss" in answer.text


def test_a_line_of_metrics_is_left_out_and_told(tape):
    lines = (tape / "train/metrics.jsonl").read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b"pg_loss", b"pg_lOss")
    (tape / "train/metrics.jsonl").write_bytes(b"\n".join(lines))
    with serve(Library([str(tape), str(tape)])) as address:
        for page in ("/t/0", "/c/0/1"):
            answer = httpx.get(address + page)
            assert answer.status_code == 200
            assert "metrics.jsonl, line 2" in answer.text


def test_the_text_of_an_unexpected_error_reaches_no_terminal_as_it_is(tape, monkeypatch, caplog, capfd):
    def fail(*_, **__):
        raise ZeroDivisionError("\x1b[2J\u202e::error::x")

    monkeypatch.setattr("rolltape.viewer.web.pages.Pages.overview", fail)
    with serve(Library([str(tape)])) as address:
        answer = httpx.get(f"{address}/t/0")
    assert answer.status_code == 500
    said = caplog.text + "".join(capfd.readouterr())
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert "\\x1b[2J\\u202e" in said


def test_export_writes_what_can_be_read(tape, capsys):
    cut(tape / "train/rollout/step_000000.parquet")
    (tape / "train/my plots").mkdir()
    (tape / "my plots").mkdir()
    (tape / "odd\\name").mkdir()
    with pytest.raises(SystemExit):
        cli.main(["export", str(tape), "--format", "jsonl", "--to", str(tape.parent / "out.jsonl")])
    assert len((tape.parent / "out.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize("place", ["no\0path", "/nowhere", "\udcff", "x" * 5000])
def test_a_baseline_that_is_no_place_hides_nothing(tape, place):
    with rolltape.Tape(tape, mode="replay", out=tape.parent / "again") as replayed:
        for step in range(3):
            with replayed.step(step):
                replayed.log({"pg_loss": step})
    manifest = tape.parent / "again" / "tape.json"
    said = json.loads(manifest.read_text())
    said["baseline"] |= {"dir": place}
    manifest.write_text(json.dumps(said))
    library = Library([str(tape.parent / "again")])
    assert library.baseline(0) is None
    with serve(Library([str(tape.parent / "again"), str(tape)])) as address:
        assert httpx.get(address).status_code == 200


def test_an_index_that_cannot_be_made_is_told_as_any_page(tape, monkeypatch):
    def broken(library, at):
        raise OSError("the disk is gone")

    monkeypatch.setattr("rolltape.viewer.run_facts.run_facts", broken)
    with serve(Library([str(tape), str(tape)])) as address:
        answer = httpx.get(address)
    assert answer.status_code == 500
    assert "OSError: the disk is gone" in answer.text


def pipe(place):
    os.mkfifo(place)


def link(place):
    place.symlink_to("/etc/passwd" if place.suffix else "/etc")


@pytest.mark.parametrize("put", [pipe, link])
@pytest.mark.parametrize("name", ["train/metrics.jsonl", "runs.jsonl", "train"])
def test_what_lies_in_the_place_of_a_file_is_damage_of_its_own_run(tape, put, name, capfd):
    healthy = tape.with_name("healthy")
    shutil.copytree(tape, healthy)
    place = tape / name
    if place.exists():
        place.rename(tape.with_name("away"))
    put(place)
    viewer = serve(Library([str(tape), str(healthy)]), follow=True)
    with viewer as address, httpx.Client(base_url=address, timeout=60, headers={"origin": address}) as client:
        for page in ("/", "/state", "/o", "/t/1", "/t/1/train/rollout/0", "/size/1"):
            assert client.get(page).status_code == 200, page
        if name == "train/metrics.jsonl":
            assert client.get("/t/0/train/rollout/0").status_code == 200
            assert "in the place of a file" in client.get("/t/0").text
        elif (put, name) != (pipe, "train"):  # a pipe among the folders of a tape is no split
            answer = client.get("/t/0")
            assert answer.status_code == 500
            assert "in the place of a" in answer.text
            assert "in the place of a" in client.get("/").text
            answer = client.post("/note/0/train/rollout/0/0", json={"note": "x"})
            assert answer.status_code == 500
            assert "in the place of a" in answer.json()["problem"]
    assert "Traceback" not in "".join(capfd.readouterr())
