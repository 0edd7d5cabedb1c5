"""Every surface counts the same tokens, whatever a mask is called and however rows are laid out."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rolltape
from rolltape.exporting import export_tape
from rolltape.viewer.library import Library
from rolltape.viewer.prompt_groups import find_groups, prompt_texts, response_texts
from rolltape.viewer.sample_view import read_sample
from rolltape.viewer.step_view import StepView
from tests.cli_tapes import run
from tests.contracts.layouts import LAYOUTS, LENGTHS, PROMPTS, RESPONSES, UIDS, cases, padded

IN_ONE = ("one row", "one row alone", "one list", "openrlhf")
"""Layouts whose responses are in one row with the prompt."""
AS_WIDE = ("lists", "one list", "one row alone")
"""Layouts without padding, or where nothing proves what is padding and what is the prompt."""


def record(folder, value):
    with rolltape.Tape(folder, mode="record", background=False) as tape, tape.step(0):
        tape.stage("rollout")(lambda: value)()
    return folder


@pytest.mark.parametrize(("layout", "mask"), list(cases()))
def test_every_surface_counts_the_same(tmp_path, layout, mask):
    tape = record(tmp_path / "tape", LAYOUTS[layout](mask))
    counts = rolltape.open(tape).samples(0).token_counts[1]
    assert counts.tolist() == LENGTHS
    listed = json.loads(run("ls", tape, "--json").stdout)["recordings"]
    assert [row["response_tokens"] for row in listed] == [sum(LENGTHS)]
    shown = json.loads(run("show", tape, 0, "--samples", "0-3", "--json").stdout)["samples"]
    assert [one["response_tokens"] for one in shown] == LENGTHS


@pytest.mark.parametrize(("layout", "mask"), list(cases()))
def test_the_viewer_shows_and_searches_the_same_tokens(tmp_path, layout, mask):
    tape = record(tmp_path / "tape", LAYOUTS[layout](mask))
    library = Library([str(tape)])
    library.decode = lambda ids: " ".join(f"<{one}>" for one in ids)
    view = StepView(library, 0, "train", "rollout", 0)
    pages = [read_sample(view, sample).tokens for sample in range(4)]
    assert [[token.id for token in page.response] for page in pages] == [list(row) for row in RESPONSES]
    assert response_texts(view) == [library.decode(row) for row in RESPONSES]
    assert [group.longest for group in find_groups(view)] == [5, 3]
    asked = json.loads(run("show", tape, 0, "--samples", "0-3", "--json").stdout)["samples"]
    assert [len(page.prompt) or None for page in pages] == [one["prompt_tokens"] for one in asked]
    if any(page.prompt for page in pages):
        assert prompt_texts(view, range(4)) == [library.decode(row) for row in PROMPTS]


@pytest.mark.parametrize("layout", ["right", "lists"])
def test_the_viewer_divides_a_row_by_the_length_of_its_response(tmp_path, layout):
    rows = [[*asked, *said] for asked, said in zip(PROMPTS, RESPONSES, strict=True)]
    tokens = rows if layout == "lists" else padded([[*row[:-1], 9] for row in rows], 8)
    tape = record(tmp_path / "tape", {"uid": UIDS, "tokens": tokens, "response_length": LENGTHS})
    view = StepView(Library([str(tape)]), 0, "train", "rollout", 0)
    pages = [read_sample(view, sample).tokens for sample in range(4)]
    shown = json.loads(run("show", tape, 0, "--samples", "0-3", "--json").stdout)["samples"]
    assert [len(page.response) for page in pages] == LENGTHS == [one["response_tokens"] for one in shown]
    assert [[token.id for token in page.prompt] for page in pages] == [list(row) for row in PROMPTS]


@pytest.mark.parametrize(("layout", "mask"), list(cases()))
def test_the_export_has_the_tokens_and_nothing_else(tmp_path, layout, mask):
    tape = record(tmp_path / "tape", LAYOUTS[layout](mask))
    export_tape(tape, tmp_path / "out.jsonl", "jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    if layout in IN_ONE:
        both = [[*asked, *said] for asked, said in zip(PROMPTS, RESPONSES, strict=True)]
        assert [row.get("input_ids") or row["sequences"] for row in rows] == both
        return
    ids = [row.get("responses") or row.get("completion_ids") for row in rows]
    assert ids == [list(row) for row in RESPONSES]
    assert [len(row["log_probs"]) for row in rows] == LENGTHS


@pytest.mark.parametrize(("layout", "mask"), [(a, b) for a, b in cases() if a not in AS_WIDE])
def test_other_padding_is_no_difference(tmp_path, layout, mask):
    sides = [record(tmp_path / str(wide), LAYOUTS[layout](mask, wide)) for wide in (0, 3)]
    wider = rolltape.compare(*sides).comparison
    masks = {mask, "attention_mask", "prompt_mask", "position_ids"}
    assert [entry.name for entry in wider.firsts() if entry.name not in masks] == []


def test_a_hole_in_a_mask_is_a_token_that_nobody_trains_on(tmp_path):
    value = LAYOUTS["responses"]("loss_mask")
    value["loss_mask"][1, 2] = 0
    tape = rolltape.open(record(tmp_path / "tape", value))
    samples = tape.samples(0)
    assert samples.token_counts[1].tolist() == LENGTHS
    assert samples.kept("log_probs", trained=True).counts.tolist() == [3, 4, 1, 3]
    assert np.isclose(samples.means("log_probs")[1], value["log_probs"][1, [0, 1, 3, 4]].mean())


def test_a_name_of_ones_own_is_a_mask_once_it_is_registered(tmp_path, monkeypatch):
    from rolltape.batch import roles

    monkeypatch.setattr(roles, "_added", {})
    value = LAYOUTS["responses"]("keep")
    tape = record(tmp_path / "tape", value)
    assert rolltape.open(tape).samples(0).token_counts[1].tolist() != LENGTHS
    try:
        rolltape.register_role("response_mask", "keep")
        assert rolltape.open(tape).samples(0).token_counts[1].tolist() == LENGTHS
    finally:
        roles.names_of.cache_clear()


def test_shards_and_calls_of_other_widths_are_counted_together(tmp_path):
    for rank in (0, 1):
        with rolltape.Tape(tmp_path / "t", mode="record", rank=rank, world_size=2) as tape, tape.step(0):
            stage = tape.stage("rollout")(lambda value: value)
            for half in (slice(0, 2), slice(2, 4)):
                value = LAYOUTS["verl"]("response_mask", wide=rank)
                value = {name: column[half] for name, column in value.items()}
                stage(value | {"uid": [f"{rank}{uid}" for uid in UIDS[half]]})
    samples = rolltape.open(tmp_path / "t").samples(0)
    by_id = dict(zip(samples.ids, samples.token_counts[1].tolist(), strict=True))
    assert [by_id[f"{rank}{uid}", at % 2] for rank in (0, 1) for at, uid in enumerate(UIDS)] == LENGTHS * 2
