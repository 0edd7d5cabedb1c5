"""A run that is not the recorded one is told which parts differ and how; nothing is reused silently."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.errors import MismatchError, UnsupportedValueError
from rolltape.fingerprint import compare, differences
from rolltape.settings import MatchLevel
from tests.taping import Rollout, batch_of, record, same

RECORDED = {
    "model": "Qwen/Qwen3-8B",
    "sampling": {"temperature": 1.0, "top_p": 0.95, "n": 8},
    "seed": 42,
    "dataset": {"path": "gsm8k", "sha256": "ab12"},
}


@pytest.fixture
def tape_dir(tmp_path: Path) -> Path:
    record(tmp_path / "t", fingerprint=RECORDED)
    return tmp_path / "t"


def test_the_same_fingerprint_in_another_order(tape_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    again = {"seed": 42, **RECORDED, "sampling": {"n": 8, "top_p": 0.95, "temperature": 1.0}}
    with rolltape.Tape(tape_dir, mode="replay", fingerprint=again) as tape:
        Rollout(tape).run(range(3))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_mismatch_lists_what_matched_and_what_did_not_with_both_values(tape_dir: Path) -> None:
    changed = RECORDED | {
        "sampling": {"temperature": 0.7, "top_p": 0.95, "min_p": 0.1},
        "model": "Qwen/Qwen3-4B",
    }
    with pytest.raises(MismatchError) as caught:
        rolltape.Tape(tape_dir, mode="replay", fingerprint=changed)
    text = str(caught.value)
    assert 'model: recorded "Qwen/Qwen3-8B", now "Qwen/Qwen3-4B"' in text
    assert (
        "sampling: recorded temperature=1.0, n=8, min_p=(absent), now temperature=0.7, n=(absent), min_p=0.1"
        in text
    )
    assert "the same: seed, dataset, environment" in text
    assert str(tape_dir) in text
    assert "match={'model': 'warn'}" in text
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("level", ["error", "warn", "ignore"])
def test_each_part_can_be_relaxed(tape_dir: Path, level: str, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"fingerprint": RECORDED | {"seed": 43}, "match": {"seed": level}}
    if level == "error":
        with pytest.raises(MismatchError, match="seed: recorded 42, now 43"):
            rolltape.Tape(tape_dir, mode="replay", **options)
        return
    rolltape.Tape(tape_dir, mode="replay", **options)
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == (level == "warn")
    assert all("seed: recorded 42, now 43" in text for text in warned)


def test_a_part_that_was_not_recorded_is_never_the_same(tape_dir: Path) -> None:
    for value in ("3.2", None, ""):
        with pytest.raises(MismatchError, match=r"tokenizer: recorded \(not recorded\), now"):
            rolltape.Tape(tape_dir, mode="replay", fingerprint=RECORDED | {"tokenizer": value})
    rolltape.Tape(tape_dir, mode="replay", fingerprint={"tokenizer": "3.2"}, match={"tokenizer": "ignore"})


def test_a_part_that_this_run_does_not_state_is_named(
    tape_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rolltape")
    for mode, level in (("replay", logging.INFO), ("auto", logging.WARNING)):
        caplog.clear()
        rolltape.Tape(tape_dir, mode=mode, fingerprint={"seed": 42})
        [said] = [record for record in caplog.records if "does not state" in record.getMessage()]
        assert said.levelno == level
        assert "model, sampling, dataset" in said.getMessage()


@pytest.mark.parametrize("mode", ["record", "auto", "replay"])
def test_resuming_with_another_fingerprint_is_refused(tape_dir: Path, mode: str) -> None:
    with pytest.raises(MismatchError, match="seed"):
        rolltape.Tape(tape_dir, mode=mode, fingerprint=RECORDED | {"seed": 1})


def test_a_difference_of_environment_is_warned_about_by_name(
    tape_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    rolltape.Tape(tape_dir, mode="replay", fingerprint=RECORDED)
    [warning] = [record.getMessage() for record in caplog.records]
    assert (
        'environment: recorded CUBLAS_WORKSPACE_CONFIG="", now CUBLAS_WORKSPACE_CONFIG=":4096:8"' in warning
    )
    with pytest.raises(MismatchError, match="CUBLAS_WORKSPACE_CONFIG"):
        rolltape.Tape(tape_dir, mode="replay", fingerprint=RECORDED, match={"environment": "error"})
    caplog.clear()
    rolltape.Tape(tape_dir, mode="replay", fingerprint=RECORDED, match={"environment": "ignore"})
    assert not caplog.records


def test_rewrite_replaces_the_fingerprint(tape_dir: Path) -> None:
    before = rolltape.Tape(tape_dir, mode="replay").manifest
    with rolltape.Tape(tape_dir, mode="rewrite", fingerprint=RECORDED | {"seed": 1}) as tape:
        Rollout(tape).run(range(3))
    with rolltape.Tape(tape_dir, mode="replay", fingerprint=RECORDED | {"seed": 1}) as tape:
        Rollout(tape).run(range(3))
    assert before is not None
    assert tape.manifest is not None
    assert (tape.manifest.id, tape.manifest.created) == (before.id, before.created), "it is the same tape"
    with pytest.raises(MismatchError, match="seed"):
        rolltape.Tape(tape_dir, mode="replay", fingerprint=RECORDED)


def test_steps_that_a_rewrite_did_not_reach_keep_their_fingerprint(
    tape_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = RECORDED | {"model": "Qwen/Qwen3-4B"}
    with rolltape.Tape(tape_dir, mode="rewrite", fingerprint=new) as tape:
        Rollout(tape).run([0])
    with rolltape.Tape(tape_dir, mode="replay", fingerprint=new) as tape:
        rollout = Rollout(tape)
        rollout.run([0])
        with pytest.raises(MismatchError) as caught:
            rollout.run([1])
    assert 'model: recorded "Qwen/Qwen3-8B", now "Qwen/Qwen3-4B"' in str(caught.value)
    assert "rewritten with another configuration, but not this step" in str(caught.value)
    caplog.clear()
    with rolltape.Tape(tape_dir, mode="replay", fingerprint=new, match={"model": "warn"}) as tape:
        assert same(Rollout(tape).run([1])[1], batch_of(1))
    assert "another fingerprint than tape.json has now" in caplog.text


def test_what_a_part_can_hold(tmp_path: Path) -> None:
    parts = {"list": [1, 2.5, None, True], "nan": float("nan"), "big": 2**70, "unicode": "\ud800é"}
    record(tmp_path / "t", fingerprint=parts)
    rolltape.Tape(tmp_path / "t", mode="replay", fingerprint=parts)
    with pytest.raises(UnsupportedValueError, match=r"fingerprint\.engine"):
        record(tmp_path / "u", fingerprint={"engine": object()})


def test_what_looks_alike_is_not_the_same() -> None:
    for one, other in [
        (1, 1.0),
        (1, True),
        ([1], [True]),
        ("1", 1),
        (None, False),
        ([], {}),
        ({"a": None}, {}),
    ]:
        assert list(differences(one, other)), (one, other)
    parts = compare({"a": 1}, {"a": 1, "b": 1}, {"b": MatchLevel.WARN})
    assert [(part.name, part.same, str(part.level)) for part in parts] == [
        ("a", True, "error"),
        ("b", False, "warn"),
    ]


def test_long_values_are_cut_around_the_difference() -> None:
    template = "{% for message in messages %}" * 50
    [part] = compare({"template": template + "A"}, {"template": template + "B"}, {})
    assert part.recorded.endswith('A"')
    assert part.given.endswith('B"')
    assert len(str(part)) < 250
    [part] = compare({"many": {str(n): n for n in range(99)}}, {"many": {}}, {})
    assert part.recorded.endswith(", …")


def test_two_processes_that_open_a_tape_at_once_agree_on_one_fingerprint(tmp_path: Path) -> None:
    code = (
        "import sys, rolltape\n"
        "sys.stdin.readline()\n"
        "try:\n    rolltape.Tape(sys.argv[1], mode='auto', fingerprint={'seed': int(sys.argv[2])})\n"
        "except rolltape.MismatchError as error:\n    print('refused', error.what)\n"
        "else:\n    print('opened')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "t")]
    started = [
        subprocess.Popen([*command, str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for seed in (1, 1, 2)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0].partition("\n")[0] for process in started]
    held = json.loads((tmp_path / "t/tape.json").read_text())["fingerprint"]["seed"]
    for seed, text in zip((1, 1, 2), said, strict=True):
        assert text.startswith("opened" if seed == held else "refused"), said
