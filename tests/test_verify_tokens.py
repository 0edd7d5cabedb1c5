"""Which token a divergence is at: its text where the tape or a tokenizer has it, its id where none does."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rolltape
from rolltape.storage import LocalStorage
from rolltape.verify import Gate
from rolltape.verify.report.report import report, to_json
from rolltape.verify.report.token_lookup import Speller, quoted
from tests.cli_tapes import run
from tests.comparing import compared

IDS = [[5, 7, 11], [13], [17, 19]]
SPELLER = Speller("by hand", lambda ids: [f"<{one}>" for one in ids])


def write(path, off=0.0, width=None, fingerprint=None, place=(0, 1), **columns):
    """A rollout, and log-probs of which one is off; padded to a width, or as long as the responses."""
    rows = [np.array(row, np.float32) for row in IDS]
    rows[place[0]][place[1]] += np.float32(off)
    if width:
        rows = np.stack([np.pad(row, (0, width - len(row))) for row in rows])
    ids = [np.array(row) for row in IDS]
    said = {"fingerprint": fingerprint or {}}
    with rolltape.Tape(path, mode="record", background=False, **said) as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"uid": list("abc"), "response_ids": ids, **columns})()
        tape.stage("loss")(lambda: {"uid": list("abc"), "log_probs": rows})()
    return path


@pytest.fixture
def told(tmp_path):
    """The report about tapes of which one is off."""

    def make(speller=None, **options):
        sides = [
            LocalStorage(str(write(tmp_path / n, off, **options))) for n, off in (("a", 0.0), ("b", 0.5))
        ]
        return report(compared(*sides), Gate(), "", speller)

    return make


def test_the_id_where_nothing_else_is_known(told):
    found = told()
    assert "sample 0 (uid a, 0), token 1 (id 7): " in found.sentence
    assert to_json(found)["token"] == {"id": 7, "text": None}
    assert to_json(found)["tokenizer"] is None


def test_the_text_of_a_tokenizer(told):
    found = told(SPELLER)
    assert 'sample 0 (uid a, 0), token 1 "<7>": ' in found.sentence
    assert to_json(found)["token"] == {"id": 7, "text": "<7>"}
    assert to_json(found)["tokenizer"] == "by hand"


def test_the_text_on_the_tape_comes_first(told):
    texts = [["the", " cat", " sat"], ["x"], ["y", "z"]]
    assert 'token 1 " cat": ' in told(SPELLER, response_tokens=texts).sentence


def test_texts_that_are_not_one_for_each_token_are_not_taken(told):
    assert "token 1 (id 7): " in told(response_tokens=[["the cat"], ["x"], ["yz"]]).sentence


def test_a_row_that_is_not_the_response_names_no_token(told):
    assert "sample 0 (uid a, 0), token 1: " in told(SPELLER, width=9).sentence


def test_a_piece_of_a_character_has_an_id(told):
    found = told(Speller("bytes", lambda ids: ["é" if at else "" for at in range(len(ids))]), place=(2, 0))
    assert "token 0 (id 17): " in found.sentence


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" the", '" the"'),
        ('say "hi"\\', r'"say \"hi\"\\"'),
        ("\n\t\x1b[31m", r'"\n\t\x1b[31m"'),
        ("\u202eevil\u200b", r'"\u202eevil\u200b"'),
        ("x" * 99, '"' + "x" * 40 + '…"'),
        ("日本", '"日本"'),
    ],
)
def test_what_cannot_be_seen_is_written_out(told, text, shown):
    assert quoted(text) == shown
    assert f"token 1 {shown}: " in told(Speller("x", lambda ids: [text] * len(ids))).sentence


def test_a_tokenizer_that_is_not_there_is_an_error_if_it_was_asked_for(tmp_path):
    a, b = write(tmp_path / "a"), write(tmp_path / "b", 0.5)
    done = run("diff", a, b, "--tokenizer", tmp_path / "nowhere")
    assert done.exit_code == 2
    assert "there is no tokenizer" in done.stderr


def test_a_model_that_the_tape_names_and_is_not_here_is_no_error(tmp_path):
    (tmp_path / "model").mkdir()
    for at, model in enumerate([str(tmp_path / "model"), "org/name", "", None, {"path": "x"}]):
        a, b = (
            write(tmp_path / f"{at}{n}", off, fingerprint={"model": model}) for n, off in (("a", 0), ("b", 1))
        )
        done = run("diff", a, b, "--json")
        assert done.exit_code == 1, done.output
        assert json.loads(done.stdout)["token"] == {"id": 7, "text": None}
