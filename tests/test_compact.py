"""Recordings that are folded into segments are read, replayed, checked, compared and changed as before."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rolltape
from rolltape.key import Key
from rolltape.storage import LocalStorage, storage_at
from rolltape.storage.segment_index import SegmentIndex
from rolltape.tape.compaction import compact
from rolltape.tape.segments import check_segment
from tests.cli_tapes import run
from tests.compacting import everything, findings, folded, plain, record_random, replayed, segments
from tests.stacks import examples
from tests.taping import Rollout, batch_of, record, same


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    record(tmp_path / "tape", range(12))
    return tmp_path / "tape"


# -- nothing changes -----------------------------------------------------------------------------------


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([1, 20_000, 10**8]), keep=st.integers(0, 3))
def test_every_file_of_a_tape_stays_what_it_is(seed: int, size: int, keep: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = f"{folder}/tape"
        record_random(directory, seed)
        before, listed = everything(directory), sorted(map(str, rolltape.open(directory).recordings()))
        assert findings(directory) == []
        for _ in range(2):  # the second time there is nothing left to do, or segments grow
            folded(directory, size=size, keep=keep)
            assert everything(directory) == before
            assert sorted(map(str, rolltape.open(directory).recordings())) == listed
            assert findings(directory) == []


def test_a_comparison_of_before_and_after_is_bitwise(tape: Path, tmp_path: Path) -> None:
    shutil.copytree(tape, tmp_path / "copy")
    folded(tape)
    done = run("diff", tmp_path / "copy", tape)
    assert done.exit_code == 0, done.stdout
    assert "bitwise" in done.stdout


def test_a_segment_holds_the_recordings_byte_for_byte(tape: Path) -> None:
    files = [path.read_bytes() for path in plain(tape)]
    folded(tape)
    [segment] = segments(tape)
    assert segment.read_bytes().startswith(b"".join(files))
    assert plain(tape) == []


def test_a_second_compaction_has_nothing_to_do(tape: Path) -> None:
    folded(tape)
    before = {path: path.stat().st_mtime_ns for path in segments(tape)}
    assert folded(tape).segments == 0
    assert {path: path.stat().st_mtime_ns for path in segments(tape)} == before


# -- what is folded ------------------------------------------------------------------------------------


def test_the_last_steps_and_young_recordings_stay_as_they_are(tape: Path) -> None:
    done = compact(storage_at(tape), settled=3600)
    assert (done.recordings, done.open) == (0, 12)
    done = compact(storage_at(tape), settled=0, keep=3)
    assert (done.recordings, done.open) == (9, 3)
    assert [Key.parse(f"train/rollout/{path.name}").step for path in plain(tape)] == [9, 10, 11]  # type: ignore[union-attr]


def test_segments_are_full_from_the_size_that_was_asked_for(tape: Path) -> None:
    size = plain(tape)[0].stat().st_size
    folded(tape, size=3 * size - 100)
    index = storage_at(tape).index()
    filled = [segment.filled for segment in index.segments.values()]
    assert len(filled) == 4
    assert all(one >= 3 * size - 100 for one in filled[:3])


def test_recordings_that_are_large_already_stay_files_of_their_own(tape: Path) -> None:
    assert folded(tape, size=100).segments == 0
    assert len(plain(tape)) == 12


def test_small_segments_grow_and_large_ones_are_left_alone(tape: Path) -> None:
    folded(tape, keep=8)
    [first] = segments(tape)
    folded(tape, keep=6)  # two more: fewer bytes than the segment has
    assert first in segments(tape)
    folded(tape, keep=0)
    assert first not in segments(tape)
    assert len(storage_at(tape).index().segments) == 2 - (first not in segments(tape))
    assert findings(tape) == []


def test_schemas_are_kept_apart_and_so_are_inputs(tmp_path: Path) -> None:
    directory = tmp_path / "tape"
    with rolltape.Tape(directory, mode="record") as tape:
        stage = tape.stage("rollout", inputs=True)(lambda step: {"a": [step]} if step % 2 else {"b": ["x"]})
        for step in range(6):
            with tape.step(step):
                stage(step)
    folded(directory)
    names = [path.name for path in segments(directory)]
    assert len(names) == 3
    assert sum(name.endswith(".in.parquet") for name in names) == 1
    assert findings(directory) == []


def test_a_damaged_recording_is_named_and_left_where_it_is(tape: Path) -> None:
    bad = tape / "train/rollout/step_000004.parquet"
    data = bytearray(bad.read_bytes())
    data[12] ^= 1
    bad.write_bytes(data)
    done = run("compact", tape, "--keep", 0, "--settled", 0)
    assert done.exit_code == 1
    assert "step_000004.parquet" in done.stderr
    assert "does not match its checksum" in done.stderr
    assert plain(tape) == [bad]
    assert [finding.file for finding in findings(tape)] == ["train/rollout/step_000004.parquet"]


def test_a_misplaced_recording_is_named_and_left_where_it_is(tape: Path) -> None:
    (tape / "train/rollout/step_000004.parquet").rename(tape / "train/rollout/step_000099.parquet")
    done = compact(storage_at(tape), keep=0, settled=0)
    assert list(done.damaged) == ["train/rollout/step_000099.parquet"]


# -- formats -------------------------------------------------------------------------------------------


def test_only_a_tape_with_segments_is_of_format_2(tape: Path, tmp_path: Path) -> None:
    def formats(directory: Path) -> int:
        return json.loads((directory / "tape.json").read_text())["format"]

    assert formats(tape) == 1
    folded(tape)
    assert formats(tape) == 2
    with rolltape.Tape(tape, mode="rewrite", fingerprint={"model": "other"}) as other:
        Rollout(other).run([0])
    assert formats(tape) == 2, "a new fingerprint does not hide the segments from older readers' eyes"
    run("cut", tape, "--steps", "1-3", "--out", tmp_path / "cut")
    assert formats(tmp_path / "cut") == 1


def test_a_reader_of_format_1_refuses(tape: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folded(tape)
    monkeypatch.setattr("rolltape.tape.manifest.NEWEST", 1)
    with pytest.raises(rolltape.FormatVersionError, match="format 2; this Rolltape reads up to 1"):
        rolltape.open(tape)


# -- modes ---------------------------------------------------------------------------------------------


def test_replay_is_exact_and_runs_nothing(tape: Path) -> None:
    folded(tape, keep=2)
    for prefetch in (True, False):
        values = list(replayed(tape, range(12), prefetch=prefetch))
        assert all(same(value, batch_of(step)) for step, value in enumerate(values))


@pytest.mark.parametrize(("on_miss", "expected"), [("cycle", 20 % 12), ("last", 11), ("nearest", 11)])
def test_substitutes_are_found_in_segments(tape: Path, on_miss: str, expected: int) -> None:
    folded(tape)
    assert same(next(replayed(tape, [20], on_miss=on_miss, match={"inputs": "ignore"})), batch_of(expected))


def test_record_refuses_a_folded_step_and_auto_replays_it(tape: Path) -> None:
    folded(tape)
    with rolltape.Tape(tape, mode="record") as again, pytest.raises(rolltape.StepExistsError):
        Rollout(again).run([3])
    with rolltape.Tape(tape, mode="record", overwrite="keep") as again:
        Rollout(again).run([3])
    with rolltape.Tape(tape, mode="auto") as again:
        rollout = Rollout(again)
        rollout.run([3, 12])
        assert rollout.live == [12]
    assert [path.name for path in plain(tape)] == ["step_000012.parquet"]
    assert findings(tape) == []


def test_a_name_in_a_segment_is_taken(tape: Path) -> None:
    storage = storage_at(tape)
    folded(tape)
    with pytest.raises(rolltape.StepExistsError, match="in a segment"):
        storage.publish("train/rollout/step_000003.parquet", [b"x"], replace=False)
    assert plain(tape) == []


def test_what_is_written_anew_wins_and_the_next_compaction_lets_the_old_go(tape: Path) -> None:
    folded(tape)
    [old] = segments(tape)
    with rolltape.Tape(tape, mode="rewrite") as anew, anew.step(3):
        anew.stage("rollout")(lambda step: batch_of(103))(3)
    reader = rolltape.open(tape)
    assert same(reader.recording(Key(step=3)).value(), batch_of(103))
    assert reader.steps() == list(range(12))
    folded(tape)
    assert old not in segments(tape)
    assert plain(tape) == []
    assert same(reader.recording(Key(step=3)).value(), batch_of(103))
    assert same(reader.recording(Key(step=4)).value(), batch_of(4))
    assert findings(tape) == []


def test_what_was_written_anew_lately_is_let_go_of_but_stays_a_file(tape: Path) -> None:
    folded(tape)
    with rolltape.Tape(tape, mode="rewrite") as anew, anew.step(11):
        anew.stage("rollout")(lambda step: batch_of(111))(11)
    folded(tape, keep=1)
    assert [path.name for path in plain(tape)] == ["step_000011.parquet"]
    assert "train/rollout/step_000011.parquet" not in storage_at(tape).index()
    assert same(rolltape.open(tape).recording(Key(step=11)).value(), batch_of(111))
    assert len(segments(tape)) == 1


def test_a_run_that_is_open_goes_on_over_a_compaction(tape: Path) -> None:
    with rolltape.Tape(tape, mode="replay") as replay, rolltape.Tape(tape, mode="auto") as auto:
        one, two = Rollout(replay), Rollout(auto)
        assert same(one.run([0])[0], batch_of(0))
        reader = rolltape.open(tape)
        recording = reader.recording(Key(step=5))
        assert recording.samples == 4
        folded(tape)
        assert same(recording.batch(["reward"])["reward"], batch_of(5)["reward"])
        assert reader.steps() == list(range(12))
        assert same(one.run([1])[1], batch_of(1))
        two.run([2, 30])
        assert two.live == [30]
        assert one.live == []


# -- deleting ------------------------------------------------------------------------------------------


def test_pruned_steps_are_gone_and_stay_gone(tape: Path) -> None:
    folded(tape, keep=2)
    done = run("prune", tape, "--keep", 4, "--yes")
    assert done.exit_code == 0, done.stderr
    assert "rolltape compact" in done.stderr
    assert rolltape.open(tape).steps() == [8, 9, 10, 11]
    assert findings(tape) == []
    size = segments(tape)[0].stat().st_size
    folded(tape, keep=2)
    assert rolltape.open(tape).steps() == [8, 9, 10, 11]
    [left] = segments(tape)
    assert left.stat().st_size < size
    assert findings(tape) == []


def test_a_segment_of_which_nothing_is_left_is_deleted(tape: Path) -> None:
    folded(tape)
    run("prune", tape, "--steps", "0-10", "--yes")
    assert len(segments(tape)) == 1
    run("prune", tape, "--steps", "11", "--yes")
    assert segments(tape) == []
    assert rolltape.open(tape).steps() == []


def test_an_old_recording_does_not_come_back_when_its_successor_is_deleted(tape: Path) -> None:
    folded(tape)
    with rolltape.Tape(tape, mode="rewrite") as anew, anew.step(3):
        anew.stage("rollout")(lambda step: batch_of(103))(3)
    storage_at(tape).delete("train/rollout/step_000003.parquet")
    assert 3 not in rolltape.open(tape).steps()
    assert not storage_at(tape).exists("train/rollout/step_000003.parquet")


def test_max_keep_drops_steps_that_are_in_segments(tape: Path) -> None:
    folded(tape)
    with rolltape.Tape(tape, mode="record", max_keep=5) as more:
        Rollout(more).run(range(12, 15))
    assert rolltape.open(tape).steps() == [10, 11, 12, 13, 14]


def test_metrics_and_notes_are_never_folded(tape: Path) -> None:
    with rolltape.Tape(tape, mode="record") as more, more.step(12):
        more.log({"loss": 1.0})
    folded(tape)
    assert (tape / "train/metrics.jsonl").exists()
    assert rolltape.open(tape).metrics() == {12: {"loss": 1.0}}


# -- damage --------------------------------------------------------------------------------------------


def test_a_flipped_bit_in_a_segment_is_found_and_fetched_from_a_copy(tape: Path, tmp_path: Path) -> None:
    shutil.copytree(tape, tmp_path / "copy")
    folded(tape)
    [segment] = segments(tape)
    place = storage_at(tape).index().find("train/rollout/step_000007.parquet")
    assert place is not None
    data = bytearray(segment.read_bytes())
    data[place.offset + 12] ^= 1
    segment.write_bytes(data)
    assert [(one.kind, one.file) for one in findings(tape)] == [
        ("damaged", "train/rollout/step_000007.parquet")
    ]
    with pytest.raises(rolltape.CorruptFileError, match="does not match its checksum"):
        rolltape.open(tape).recording(Key(step=7)).value()
    assert run("repair", tape, "--from", tmp_path / "copy").exit_code == 0
    assert findings(tape) == []
    assert same(rolltape.open(tape).recording(Key(step=7)).value(), batch_of(7))
    folded(tape)
    assert plain(tape) == []
    assert findings(tape) == []


def test_a_damaged_step_in_a_segment_can_be_dropped_and_recorded_again(tape: Path) -> None:
    folded(tape)
    [segment] = segments(tape)
    data = bytearray(segment.read_bytes())
    data[12] ^= 1
    segment.write_bytes(data)
    assert run("repair", tape, "--drop").exit_code == 0
    with rolltape.Tape(tape, mode="auto") as again:
        rollout = Rollout(again)
        rollout.run(range(12))
        assert rollout.live == [0]
    assert findings(tape) == []


def test_a_segment_that_is_gone_is_an_error_that_names_it(tape: Path) -> None:
    folded(tape)
    [segment] = segments(tape)
    segment.unlink()
    with pytest.raises(rolltape.CorruptFileError, match=r"the segment that holds .*step_000003") as caught:
        rolltape.open(tape).recording(Key(step=3)).value()
    assert segment.name in str(caught.value)
    assert {finding.kind for finding in findings(tape)} == {"damaged", "segment"}


def test_a_flipped_bit_at_the_end_of_a_segment_is_found(tape: Path) -> None:
    folded(tape)
    [segment] = segments(tape)
    whole = segment.read_bytes()
    filled = sum(place.size for _, place in storage_at(tape).index().items())
    for at in [*range(filled, len(whole), 97), len(whole) - 1]:
        segment.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(rolltape.CorruptFileError):
            check_segment(storage_at(tape), f"train/rollout/{segment.name}")
    assert [finding.kind for finding in findings(tape)] == ["segment"]


def test_a_damaged_index_is_refused_by_name_and_made_anew_from_the_segments(tape: Path) -> None:
    before = everything(tape)
    folded(tape)
    index = max((tape / "segments.index").iterdir())
    data = bytearray(index.read_bytes())
    data[-9] ^= 1
    index.write_bytes(data)
    with pytest.raises(rolltape.CorruptFileError, match="index of the segments") as caught:
        rolltape.open(tape).recording(Key(step=3)).value()
    assert "rolltape repair" in str(caught.value)
    assert f"segments.index/{index.name}" in str(caught.value)
    done = run("repair", tape)
    assert done.exit_code == 0, done.stderr
    assert "made anew" in done.stderr
    assert everything(tape) == before
    assert findings(tape) == []


def test_an_index_that_swaps_recordings_is_seen_through(tape: Path) -> None:
    """Whatever an index says, a recording knows its own name."""
    folded(tape)
    storage = storage_at(tape)

    def swap(index: SegmentIndex) -> SegmentIndex:
        rows = index._folders["train/rollout/"].read[0].rows
        rows[[3, 4]] = rows[[4, 3]]
        return index.numbered(index.generation + 1)

    storage.change(swap)
    with pytest.raises(rolltape.MisplacedFileError, match="recorded as step 4"):
        rolltape.open(tape).recording(Key(step=3)).value()
    assert [finding.kind for finding in findings(tape)] == ["misplaced", "misplaced"]


# -- other commands ------------------------------------------------------------------------------------


def test_commands_say_the_same_of_a_folded_tape(tape: Path) -> None:
    def said() -> list[str]:
        commands = [
            ("ls", tape, "--json"),
            ("show", tape, "3", "--json"),
            ("check", tape, "--json"),
            ("export", tape, "--steps", "2-4", "--format", "jsonl", "--to", tape.parent / "out"),
        ]
        found = []
        for command in commands:
            done = run(*command)
            assert done.exit_code == 0, (command, done.stderr)
            found.append(done.stdout)
        exported = tape.parent / "out"
        found.append(exported.read_text())
        exported.unlink()
        return found

    before = said()
    folded(tape)
    assert said() == before


def test_the_command_says_what_it_did(tape: Path) -> None:
    done = run("compact", tape, "--settled", 0)
    assert done.exit_code == 0
    assert "folded 11 recordings into 1 segment" in done.stderr
    assert "left 1 recording" in done.stderr
    assert "nothing to fold" in run("compact", tape, "--settled", 0).stderr


def test_what_is_no_tape_is_refused_and_left_alone(tmp_path: Path) -> None:
    done = run("compact", tmp_path)
    assert done.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_plain_tape_is_asked_for_no_index_where_files_are_found(
    tape: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = []
    names = LocalStorage.names
    monkeypatch.setattr(
        LocalStorage, "names", lambda self, prefix: (listed.append(prefix), names(self, prefix))[1]
    )
    assert len(list(replayed(tape, range(12), prefetch=False))) == 12
    assert "segments.index/" not in listed
