"""What is wrong with a question, an index or a tape is told, and never leads to a wrong answer."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import rolltape
from rolltape.engines import Prompt
from rolltape.index import (
    SampleIndex,
    by_prompt,
    canonical,
    index_building,
    index_part,
    index_rows,
    sample_index,
)
from rolltape.index.index_building import build_index, check_index
from rolltape.index.index_rows import SCHEMA
from tests.index.generating import Generation
from tests.index.test_by_prompt import check_answer, recorded
from tests.stacks import optional


def replayed(folder: Path, generation: Generation, prompts: list[str], n: int = 8) -> dict[str, Any]:
    """An answer from recordings alone, wherever they are."""
    with rolltape.Tape(folder, mode="replay") as tape:
        stage = generation.stage(tape, version="any")
        with tape.step(99):
            found: dict[str, Any] = stage(prompts, n=n)
    return found


def test_prompts_of_one_digest_are_told_apart_by_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (by_prompt, sample_index, index_rows):
        monkeypatch.setattr(module, "prompt_digest", lambda content: b"the same for all")
    generation = recorded(tmp_path / "tape")
    for _ in range(2):
        found = replayed(tmp_path / "tape", generation, ["bb2", "a0", "a1"])
        check_answer(found, generation, ["bb2", "a0", "a1"], 8)
        with pytest.raises(rolltape.StepMissingError):
            replayed(tmp_path / "tape", generation, ["never recorded"])
        build_index(rolltape.open(tmp_path / "tape"))


def test_a_tape_that_changed_since_it_was_indexed(tmp_path: Path) -> None:
    folder = tmp_path / "tape"
    generation = recorded(folder)
    build_index(rolltape.open(folder))
    again = Generation(seed=1)
    with rolltape.Tape(folder, mode="rewrite") as tape:
        stage = again.stage(tape)
        with tape.step(1):
            stage(["bb1", "new"], n=8)
    check_answer(replayed(folder, again, ["new", "bb1"]), again, ["new", "bb1"], 8)
    check_answer(replayed(folder, generation, ["bb2"]), generation, ["bb2"], 8)
    with pytest.raises(rolltape.StepMissingError):
        replayed(folder, generation, ["a1"])
    (folder / "train/rollout/step_000000.parquet").unlink()
    with pytest.raises(rolltape.StepMissingError):
        replayed(folder, generation, ["a0"])
    assert {fault.kind for fault in check_index(rolltape.open(folder))} == {"stale"}
    build_index(rolltape.open(folder))
    assert check_index(rolltape.open(folder)) == []


def test_half_an_index_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tape"
    generation = recorded(folder)
    for part in (folder / "samples.index/train/rollout").iterdir():
        part.unlink()
    monkeypatch.setattr(index_building, "PART_ROWS", 10)
    assert build_index(rolltape.open(folder)).parts == 5
    index = SampleIndex(rolltape.open(folder))
    assert (len(index), index.unindexed(), index.faults) == (48, [], [])
    next((folder / "samples.index/train/rollout").iterdir()).unlink()
    index = SampleIndex(rolltape.open(folder))
    assert [fault.kind for fault in index.faults] == ["half"]
    assert len(index) == 48, "the recordings are read instead"
    check_answer(replayed(folder, generation, ["bb2", "a0"]), generation, ["bb2", "a0"], 8)
    assert "half" in {fault.kind for fault in check_index(rolltape.open(folder))}
    assert build_index(rolltape.open(folder)).samples == 48
    assert check_index(rolltape.open(folder)) == []


def test_a_damaged_index_never_leads_to_a_wrong_answer(tmp_path: Path) -> None:
    folder = tmp_path / "tape"
    generation = recorded(folder, steps=2, n=2)
    build_index(rolltape.open(folder))
    (part,) = (folder / "samples.index/train/rollout").iterdir()
    whole = part.read_bytes()
    for at in range(0, len(whole), 97):
        part.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        check_answer(replayed(folder, generation, ["bb1", "a0"], n=2), generation, ["bb1", "a0"], 2)
    for size in (0, 4, len(whole) // 2):
        part.write_bytes(whole[:size])
        check_answer(replayed(folder, generation, ["bb1"], n=2), generation, ["bb1"], 2)
    build_index(rolltape.open(folder))
    assert check_index(rolltape.open(folder)) == []


def test_an_index_that_lies_is_found_out(tmp_path: Path) -> None:
    folder = tmp_path / "tape"
    recorded(folder, steps=2)
    run = rolltape.open(folder)
    index = SampleIndex(run, read=False)
    (_, table), *_ = index.stored_rows()
    wrong = table.set_column(
        table.column_names.index("row"), table.schema.field("row"), table["row"].take(list(range(32))[::-1])
    )
    index_building.drop_index(run, "rollout", "train")
    data = index_building.encode_part(wrong, index.indexed_by(), "x")
    name = index_building.part_name("train", "rollout", "x")
    run.storage.publish(name, [data], replace=False)
    assert "differs" in {fault.kind for fault in check_index(run)}


def test_uids_that_are_all_the_same(tmp_path: Path) -> None:
    def generate(prompts: list[str]) -> dict[str, Any]:
        return {"uid": ["u"] * len(prompts), "text": [prompt.upper() for prompt in prompts]}

    for mode, prompts in (("record", ["a", "b", "c"]), ("replay", ["c", "a"])):
        with rolltape.Tape(tmp_path / "tape", mode=mode) as tape:
            stage = tape.stage("rollout", by="prompt", prompts="prompts")(generate)
            with tape.step(0):
                assert stage(prompts)["text"] == [prompt.upper() for prompt in prompts]


def test_images_are_their_pixels(tmp_path: Path) -> None:
    first, other = np.zeros((2, 2, 3), np.uint8), np.ones((2, 2, 3), np.uint8)
    assert canonical({"text": "what?", "image": first}) == canonical({"image": first.copy(), "text": "what?"})
    assert canonical({"text": "what?", "image": first}) != canonical({"text": "what?", "image": other})
    assert canonical(first) != canonical(first.reshape(4, 3)) != canonical(first.tobytes())

    def describe(prompts: list[str], images: list[Any]) -> list[int]:
        return [int(image.sum()) for image in images]

    for mode, images in (("record", [first, other]), ("replay", [other, first])):
        with rolltape.Tape(tmp_path / "tape", mode=mode) as tape:
            stage = tape.stage("rollout", by="prompt", prompts=["prompts", "images"])(describe)
            with tape.step(0):
                assert stage(["what?", "what?"], images) == [int(image.sum()) for image in images]


def test_numbers_that_have_the_same_bits_are_not_the_same_prompt() -> None:
    large = np.array([2**63 + 1, 7], np.uint64)
    assert canonical(large) == canonical([2**63 + 1, 7])
    assert canonical(large) != canonical(large.view(np.int64))
    assert canonical(np.array([7], np.uint64)) == canonical([7])
    with pytest.raises(rolltape.UnsupportedValueError, match="written alike"):
        canonical({1: "a", "1": "b"})


def test_an_image_is_the_same_whatever_file_it_came_from(tmp_path: Path) -> None:
    image = optional("PIL.Image")
    importlib.import_module("rolltape.batch.images")  # an entry point, where the package is installed
    made = image.new("RGB", (3, 2), (10, 20, 30))
    made.save(tmp_path / "x.png")
    with image.open(tmp_path / "x.png") as opened:
        assert canonical(made) == canonical(opened.copy())
    assert canonical(made) != canonical(image.new("RGB", (2, 3), (10, 20, 30)))


def test_prompts_of_100_000_tokens(tmp_path: Path) -> None:
    long = np.arange(100_000)
    other = long.copy()
    other[-1] += 1

    def generate(prompts: list[Any]) -> dict[str, Any]:
        return {"last": [int(prompt[-1]) for prompt in prompts]}

    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        stage = tape.stage("rollout", by="prompt", prompts="prompts")(generate)
        with tape.step(0):
            stage([long, other])
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        stage = tape.stage("rollout", by="prompt", prompts="prompts")(generate)
        with tape.step(0):
            assert stage([other.tolist(), long.astype(np.int32)])["last"] == [100_000, 99_999]
        with tape.step(0), pytest.raises(rolltape.StepMissingError):
            stage([long[:-1]])


@pytest.mark.parametrize("n", [0, -1, 1.5, None, True])
def test_how_many_samples_is_a_number(tmp_path: Path, n: Any) -> None:
    generation = recorded(tmp_path / "tape", steps=1)
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        stage = generation.stage(tape)
        with tape.step(0), pytest.raises(rolltape.ConfigError, match="n must be a whole number"):
            stage(["a0"], n="many" if n is None else n)
    with rolltape.Tape(tmp_path / "other", mode="record") as tape:
        stage = generation.stage(tape)
        with tape.step(0), pytest.raises(rolltape.ConfigError, match="n must be a whole number"):
            stage(["a0"], n="many" if n is None else n)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"by": "content", "prompts": "prompts"}, "by must be step or prompt"),
        ({"by": "prompt"}, "which argument holds the prompts"),
        ({"by": "prompt", "prompts": "promts"}, "has no argument 'promts'"),
        ({"by": "prompt", "prompts": "prompts", "n": 0}, "n must be at least 1"),
        ({"by": "prompt", "prompts": "prompts", "version": "newest"}, "none of same, any, nearest"),
        ({"by": "prompt", "prompts": "prompts", "version": "<= -1 old"}, "none of same, any, nearest"),
        ({"by": "prompt", "prompts": "prompts", "sampling": ["top_q"]}, "has no argument 'top_q'"),
        ({"version": "any"}, "asked by its step"),
        ({"prompts": "prompts"}, "asked by its step"),
    ],
)
def test_stages_that_are_declared_wrongly(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    tape = rolltape.Tape(tmp_path / "tape", mode="auto")
    with pytest.raises(rolltape.RolltapeError, match=says):
        tape.stage("rollout", **options)(lambda prompts: prompts)
    tape.close()


def test_prompts_that_cannot_be_looked_up(tmp_path: Path) -> None:
    tape = rolltape.Tape(tmp_path / "tape", mode="auto")
    stage = tape.stage("rollout", by="prompt", prompts="prompts")(lambda prompts: prompts)
    for prompts in ([object()], "one text", 5, [iter([1])]):
        with tape.step(0), pytest.raises(rolltape.UnsupportedValueError, match="prompt"):
            stage(prompts)
    tape.close()


def test_a_step_is_not_substituted_for_samples(tmp_path: Path) -> None:
    generation = recorded(tmp_path / "tape", steps=1)
    with rolltape.Tape(tmp_path / "tape", mode="replay", on_miss="cycle") as tape:
        stage = generation.stage(tape)
        with tape.step(0), pytest.raises(rolltape.ConfigError, match="on_miss is error, live or record"):
            stage(["a0", "new"], n=8)


def test_what_was_generated_and_does_not_fit_is_refused(tmp_path: Path) -> None:
    def generate(prompts: list[str], n: int = 1) -> dict[str, Any]:
        return {"text": prompts[:1]}

    generation = recorded(tmp_path / "tape", steps=1)
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        stage = tape.stage("rollout", by="prompt", prompts="prompts", n="n")(generate)
        with (
            tape.step(0),
            pytest.raises(rolltape.BatchError, match="returned 1 samples for 3 prompts with n=1"),
        ):
            stage(["a0", "x", "y"], n=1)
    assert len(list(rolltape.open(tmp_path / "tape").recordings())) == 1
    assert generation.calls == [16]


def test_live_generates_and_keeps_nothing(tmp_path: Path) -> None:
    generation = recorded(tmp_path / "tape", steps=1)
    with rolltape.Tape(tmp_path / "tape", mode="replay", on_miss="live") as tape:
        stage = generation.stage(tape)
        with tape.step(0):
            check_answer(stage(["new", "a0"], n=8), generation, ["new", "a0"], 8)
    assert len(list(rolltape.open(tmp_path / "tape").recordings())) == 1


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_recording_that_is_gone_while_the_rest_is_generated(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "tape"
    generation = recorded(folder)

    def generate(prompts: list[str], n: int = 1, temperature: float = 1.0, first: Any = None) -> Any:
        (folder / "train/rollout/step_000001.parquet").unlink()
        if how == "replaced":
            with rolltape.Tape(folder, mode="rewrite") as other, other.step(1):
                Generation(seed=1).stage(other)(["evil", "evil too"], n=8)
        return generation.generate(prompts, n, temperature, first)

    with rolltape.Tape(folder, mode="auto") as tape:
        options: dict[str, Any] = {"by": "prompt", "prompts": "prompts", "n": "n", "first": "first"}
        stage = tape.stage("rollout", version="any", **options)(generate)
        with tape.step(7):
            check_answer(stage(["a1", "new"], n=8), generation, ["a1", "new"], 8)
    assert len(SampleIndex(rolltape.open(folder)).samples_of("new")) == 8


def test_what_was_generated_is_recorded_before_anything_can_go_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> Any:
        raise rolltape.BatchError("they do not fit together")

    generation = recorded(tmp_path / "tape", steps=1)
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        stage = generation.stage(tape)
        monkeypatch.setattr(by_prompt, "put_together", refuse)
        with tape.step(0), pytest.raises(rolltape.BatchError, match="fit together"):
            stage(["a0", "new"], n=8)
    assert len(SampleIndex(rolltape.open(tmp_path / "tape")).samples_of("new")) == 8


def test_an_index_with_a_damaged_group_is_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "tape"
    generation = recorded(folder)
    (part,) = (folder / "samples.index/train/rollout").iterdir()
    whole = part.read_bytes()
    part.write_bytes(whole[:40] + bytes([whole[40] ^ 255]) + whole[41:])
    assert "damaged" in {fault.kind for fault in check_index(rolltape.open(folder))}
    assert build_index(rolltape.open(folder)).samples == 48
    assert check_index(rolltape.open(folder)) == []
    check_answer(replayed(folder, generation, ["bb2", "a0"]), generation, ["bb2", "a0"], 8)


def forged(folder: Path, **columns: Any) -> None:
    """An index whose checksums are right, and whose rows say something else in some columns."""
    run = rolltape.open(folder)
    index = SampleIndex(run, read=False)
    (names, table), *_ = index.stored_rows()
    for name, change in columns.items():
        field = table.schema.field(name)
        values = pa.array([change(one) for one in table[name].to_pylist()], field.type)
        table = table.set_column(table.column_names.index(name), field, values)
    data = index_building.encode_part(table, [index.indexed[name] for name in names], "x")
    index_building.drop_index(run, "rollout", "train")
    run.storage.publish(index_building.part_name("train", "rollout", "x"), [data], replace=False)


@pytest.mark.parametrize("name", [name for name in SCHEMA.names if name != "file"])
def test_a_check_compares_all_that_an_index_says(tmp_path: Path, name: str) -> None:
    """Also what only filters ask for: a reward that is another one, or one where there is none."""
    others = {"prompt": b"\xff" * 16, "sampling": bytes(16), "uid": "other", "finish": "other"}
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        stage = tape.stage("rollout", by="prompt", prompts="prompts")(
            lambda prompts: {"text": prompts, "reward": [0.5 * at for at in range(len(prompts))]}
        )
        with tape.step(1):
            stage(["a", "b", "c"])
    assert check_index(rolltape.open(tmp_path / "tape")) == []
    last: list[Any] = []

    def change(value: Any) -> Any:  # of one sample alone
        last.append(value)
        if len(last) != 3:
            return value
        return others[name] if name in others else (value or 0) + 1

    forged(tmp_path / "tape", **{name: change})
    assert {fault.kind for fault in check_index(rolltape.open(tmp_path / "tape"))} == {"differs"}


@pytest.mark.parametrize(
    "columns", [{"row": lambda row: row - 16}, {"file": lambda file: file + 3}, {"file": lambda file: -1}]
)
def test_an_index_of_rows_that_are_nowhere_is_passed_over(tmp_path: Path, columns: dict[str, Any]) -> None:
    generation = recorded(tmp_path / "tape")
    forged(tmp_path / "tape", **columns)
    found = replayed(tmp_path / "tape", generation, ["bb2", "a0"])
    check_answer(found, generation, ["bb2", "a0"], 8)
    assert build_index(rolltape.open(tmp_path / "tape")).samples == 48
    assert check_index(rolltape.open(tmp_path / "tape")) == []


def test_an_index_that_names_a_sample_twice_does_not_double_it(tmp_path: Path) -> None:
    generation = recorded(tmp_path / "tape")
    forged(tmp_path / "tape", row=lambda row: row // 2 * 2)
    with pytest.raises(rolltape.StepMissingError):
        replayed(tmp_path / "tape", generation, ["a0"], n=8)
    assert len(set(replayed(tmp_path / "tape", generation, ["a0", "bb1"], n=4)["text"])) == 8


@pytest.mark.parametrize("column", ["version", "sampling"])
def test_an_index_does_not_say_how_a_sample_was_drawn(tmp_path: Path, column: str) -> None:
    generation = recorded(tmp_path / "tape")
    drawn = SampleIndex(rolltape.open(tmp_path / "tape")).samples_of("a0")[0].sampling
    forged(tmp_path / "tape", **{column: lambda _: 9 if column == "version" else drawn})
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        stage = generation.stage(tape)
        with tape.step(9), pytest.raises(rolltape.StepMissingError):
            stage(["a0"], n=8)
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        stage = generation.stage(tape, version="any")
        with tape.step(9), pytest.raises(rolltape.StepMissingError):
            stage(["a0"], n=8, temperature=0.5)


@pytest.mark.parametrize(
    "said",
    [
        {"set": []}, {"set": None}, {"parts": "1"}, {"recordings": [[[], 1, "", ""]]}, {"recordings": 5},
        {"recordings": [["train/rollout/step_000000.parquet", 1, "", ""]] * 3},
        {"recordings": [["../../other/step_000000.parquet", 1, "", ""]]},
    ],
)  # fmt: skip
def test_an_index_that_says_nonsense_of_itself_is_passed_over(
    tmp_path: Path, said: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = recorded(tmp_path / "tape")
    dumps = json.dumps
    with monkeypatch.context() as patch:
        patch.setattr(index_part.json, "dumps", lambda body, **how: dumps(body | said, **how))
        forged(tmp_path / "tape")
    found = replayed(tmp_path / "tape", generation, ["bb2", "a0"])
    check_answer(found, generation, ["bb2", "a0"], 8)
    assert build_index(rolltape.open(tmp_path / "tape")).samples == 48


def test_an_index_with_larger_groups_than_it_has_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = recorded(tmp_path / "tape")
    with monkeypatch.context() as patch:
        patch.setattr(index_part, "GROUP_ROWS", 2**20)
        forged(tmp_path / "tape")
        assert len(SampleIndex(rolltape.open(tmp_path / "tape"), read=False)) == 48
    monkeypatch.setattr(index_part, "GROUP_ROWS", 16)
    assert not SampleIndex(rolltape.open(tmp_path / "tape"), read=False).parts
    check_answer(replayed(tmp_path / "tape", generation, ["a0"]), generation, ["a0"], 8)


def test_every_field_of_an_object_is_part_of_a_prompt() -> None:
    @dataclasses.dataclass
    class Task:
        first: str
        prompt_id: int = 0

    assert canonical(Task("a")) != canonical(Task("b"))
    assert canonical(Task("a", 1)) != canonical(Task("a", 2))
    assert canonical(Task("a", 1)) == canonical(Task("a", 1))
    assert canonical(Prompt(text="a", uid="u", first=3)) == canonical("a")


def test_sampling_that_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    class Params:
        def __init__(self, temperature: float) -> None:
            self.temperature = temperature

    def generate(prompts: list[str], params: Any, model: Any = None) -> list[str]:
        return [f"{prompt} at {getattr(params, 'temperature', params)}" for prompt in prompts]

    options: dict[str, Any] = {"by": "prompt", "prompts": "prompts", "version": "any"}
    for mode in ("record", "auto"):
        with rolltape.Tape(tmp_path / mode, mode=mode) as tape:
            stage = tape.stage("rollout", **options)(generate)
            with tape.step(0), pytest.raises(rolltape.UnsupportedValueError, match="Params, of which nobody"):
                stage(["a"], Params(0.1))
            with tape.step(0):
                stage(["a"], 0.1, model=len)
    with rolltape.Tape(tmp_path / "auto", mode="auto") as tape:
        stage = tape.stage("rollout", **options)(generate)
        with tape.step(1):
            assert stage(["a"], 0.9, model=max) == ["a at 0.9"]
            assert stage(["a"], 0.1, model=max) == ["a at 0.1"]
        assert tape.summary().by_content == 1


def test_how_many_are_asked_for_is_no_sampling_wherever_it_stands(tmp_path: Path) -> None:
    calls: list[int] = []

    @dataclasses.dataclass
    class Config:
        each: int
        temperature: float = 1.0

    def generate(prompts: list[str], config: Config) -> list[str]:
        calls.append(config.each)
        return [f"{prompt} {at} of {config.temperature}" for prompt in prompts for at in range(config.each)]

    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        stage = tape.stage("rollout", by="prompt", prompts="prompts", n="config.each")(generate)
        for config in (Config(2), Config(6), Config(3, 0.5)):
            with tape.step(0):
                assert len(stage(["a"], config)) == config.each
    assert calls == [2, 4, 3]


def test_a_stage_that_returns_more_than_it_declares(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def generate(prompts: list[str]) -> dict[str, Any]:
        return {"text": [f"{prompt}{at}" for prompt in prompts for at in range(4)]}

    for summary in ((1, 0), (0, 1)):
        with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
            stage = tape.stage("rollout", by="prompt", prompts="prompts")(generate)
            with tape.step(0):
                assert stage(["a", "b"]) == generate(["a", "b"]), "what was recorded, all of it"
            tape.flush()
            assert (tape.summary().recorded, tape.summary().replayed) == summary
    assert "returned 8 samples for 2 prompts with n=1" in caplog.text


def test_a_tuple_that_may_be_meant_to_be_of_samples_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def generate(prompts: list[str]) -> dict[str, Any]:
        return {"text": list(prompts), "of": {"labels": tuple(prompts)}}

    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        stage = tape.stage("rollout", by="prompt", prompts="prompts", version="any")(generate)
        with tape.step(0):
            stage(["a", "b"])
        with tape.step(1):
            assert stage(["b", "a"])["text"] == ["b", "a"]
    assert "'of/labels' is a tuple of as many entries" in caplog.text
