"""``rolltape import`` and what follows it, from the command line: what is said, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import rolltape
from rolltape.cli.app import exit_code
from rolltape.cli.commands.import_ import command
from rolltape.exporting import export_tape
from tests.torch import dumps


def run(*arguments: object) -> int:
    return exit_code(lambda: command.main([str(a) for a in arguments], standalone_mode=False))


def test_an_import_says_what_it_found_and_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dumps.verl_v2(tmp_path / "d", {1: 1, 2: 2})
    assert run(tmp_path / "d", "--to", tmp_path / "t", "--dry-run") == 0
    assert "4 recordings would be imported" in capsys.readouterr().out
    assert not (tmp_path / "t").exists()
    assert run(tmp_path / "d", "--to", tmp_path / "t") == 0
    said = capsys.readouterr()
    for words in ("verl RolloutSkip V2", "train/rollout: steps 1-2, 12 samples", "4 recordings imported"):
        assert words in said.out
    assert said.err == ""
    assert run(tmp_path / "d", "--to", tmp_path / "t", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["system"], document["imported"], document["kept"]) == ("verl RolloutSkip V2", [], 4)


def test_findings_and_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dumps.roll(tmp_path / "d", [0, 1], splits=("train",))
    (tmp_path / "d" / "train" / "step_000000.pkl").write_bytes(b"\x80\x04cposix\nsystem\n.")
    assert run(tmp_path / "d", "--to", tmp_path / "t") == 1
    said = capsys.readouterr().err
    assert "refused" in said
    assert "posix.system" in said
    assert "step_000000.pkl" in said
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty", "--to", tmp_path / "u") == 3
    assert run(tmp_path / "nowhere", "--to", tmp_path / "u") == 2
    assert run(tmp_path / "d") == 2
    assert run(tmp_path / "d", "--to", tmp_path / "u", "--steps", "77") == 3


def test_imported_slime_samples_are_exported_line_by_line(tmp_path: Path) -> None:
    dumps.slime(tmp_path / "d", [3])
    assert run(tmp_path / "d", "--to", tmp_path / "t") == 0
    export_tape(tmp_path / "t", tmp_path / "o.jsonl", "jsonl")
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    wanted = dumps.slime_samples(3)
    for name in ("prompt", "response", "tokens", "reward", "rollout_log_probs", "loss_mask"):
        assert [row[name] for row in rows] == [sample[name] for sample in wanted]
    assert rows[1]["rollout_routed_experts"] == (torch.arange(6).reshape(2, 3) + 1).tolist()


def test_floats_numpy_lacks_are_exported_by_value(tmp_path: Path) -> None:
    values = torch.tensor([[0.5, -1.5], [2.0, 448.0]])
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        kinds = (torch.bfloat16, torch.float16, torch.float8_e4m3fn)
        rollout = tape.stage("rollout")(lambda: {str(kind)[6:]: values.to(kind) for kind in kinds})
        with tape.step(0):
            rollout()
    export_tape(tmp_path / "t", tmp_path / "o.jsonl", "jsonl")
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    for name in ("bfloat16", "float16", "float8_e4m3fn"):
        assert [row[name] for row in rows] == values.tolist()
