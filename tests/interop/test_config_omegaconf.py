"""A Hydra user writes the options into the trainer's own config."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

import rolltape
from tests.taping import Rollout, files


def test_a_section_of_a_trainers_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = OmegaConf.create(
        {
            "root": str(tmp_path),
            "actor": {"broken": "${nowhere}"},
            "rolltape": {
                "mode": "record",
                "dir": "${root}/tape",
                "steps": ["0-1", 3],
                "fingerprint": {"sampling": {"temperature": 0.7, "stop": ["a", "b"]}},
                "match": {"sampling": "warn"},
                "max_keep": None,
            },
        }
    )
    with rolltape.Tape.from_config(config) as tape:
        Rollout(tape).run(range(5))
    assert tape.dir == str(tmp_path / "tape")
    assert len(files(tmp_path / "tape")) == 1 + 3
    assert tape.manifest is not None
    assert tape.manifest.fingerprint == {"sampling": {"temperature": 0.7, "stop": ["a", "b"]}}
    monkeypatch.setenv("ROLLTAPE_MODE", "replay")
    with rolltape.Tape.from_config(config.rolltape, on_miss="last") as tape:
        assert Rollout(tape).run([0])[0]["meta"]["step"] == 0
