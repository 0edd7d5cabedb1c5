"""The same options from arguments, the environment and a trainer's config; directories mean one place."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.config_file import load_file
from rolltape.errors import ConfigError
from rolltape.settings import resolve
from tests.stacks import optional
from tests.taping import Rollout, files, record


@dataclass
class RolltapeSection:
    mode: str = "record"
    dir: str = ""
    steps: str | None = "0-2"


@dataclass
class TrainerConfig:
    rolltape: RolltapeSection = field(default_factory=RolltapeSection)
    lr: float = 1e-6


def test_the_arguments_are_the_settings() -> None:
    arguments = list(inspect.signature(rolltape.Tape.__init__).parameters)
    assert arguments == ["self", *(option.name for option in fields(rolltape.Settings)), "settings"]


def test_from_a_mapping(tmp_path: Path) -> None:
    config = {
        "trainer": {"lr": 1},
        "rolltape": {"mode": "record", "dir": str(tmp_path / "t"), "steps": "0-2"},
    }
    with rolltape.Tape.from_config(config) as tape:
        Rollout(tape).run(range(5))
    assert len(files(tmp_path / "t")) == 1 + 3
    assert rolltape.Tape.from_config({"trainer": {}, "rolltape": None}).is_off
    assert rolltape.Tape.from_config({}).is_off


def test_from_a_dataclass(tmp_path: Path) -> None:
    tape = rolltape.Tape.from_config(TrainerConfig(RolltapeSection(dir=str(tmp_path / "t"))))
    assert (tape.settings.mode, str(tape.settings.steps), tape.dir) == ("record", "0-2", str(tmp_path / "t"))


@pytest.mark.parametrize("name", ["config.yaml", "config.json"])
def test_from_a_file(tmp_path: Path, name: str) -> None:
    optional("yaml")
    config = {"rolltape": {"mode": "record", "dir": str(tmp_path / "t"), "fingerprint": {"model": "m"}}}
    (tmp_path / name).write_text(json.dumps(config))  # YAML reads JSON
    for source in (tmp_path / name, str(tmp_path / name)):
        tape = rolltape.Tape.from_config(source)
        assert (tape.settings.mode, tape.dir) == ("record", str(tmp_path / "t"))
    assert tape.manifest is not None
    assert tape.manifest.fingerprint == {"model": "m"}


def test_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rolltape.Tape.from_env().is_off
    record(tmp_path / "t", range(2))
    monkeypatch.setenv("ROLLTAPE_DIR", str(tmp_path / "t"))
    assert rolltape.Tape.from_env().settings.mode == "auto"
    monkeypatch.setenv("ROLLTAPE_MODE", "replay")
    monkeypatch.setenv("ROLLTAPE_ON_MISS", "last")
    with rolltape.Tape.from_env() as tape:
        assert Rollout(tape).run([9])[9]["meta"]["step"] == 1
    monkeypatch.setenv("ROLLTAPE_MODE", "off")
    assert rolltape.Tape.from_env().is_off


def test_argument_over_environment_over_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"dir": str(tmp_path / "file"), "mode": "record", "steps": "1", "beyond": "record"}
    monkeypatch.setenv("ROLLTAPE_DIR", str(tmp_path / "environment"))
    monkeypatch.setenv("ROLLTAPE_STEPS", "2")
    tape = rolltape.Tape.from_config(config, steps="3")
    assert (tape.dir, str(tape.settings.steps), tape.settings.beyond) == (
        str(tmp_path / "environment"),
        "3",
        "record",
    )
    assert rolltape.Tape(tmp_path / "argument").dir == str(tmp_path / "argument")
    assert rolltape.Tape(mode="record").dir == str(tmp_path / "environment")
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "recrod"},
        {"steps": "9-0"},
        {"rank": 2},
        {"max_keep": 0},
        {"on_miss": "skip"},
        {"match": {"a": "no"}},
    ],
)
def test_a_bad_option_is_told_before_anything_is_touched(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        rolltape.Tape(**{"dir": tmp_path / "t", **options})
    assert next(iter(options)) in str(caught.value)
    with pytest.raises(ConfigError, match=r"dir .* is not set"):
        rolltape.Tape(mode="record")
    with pytest.raises(ConfigError, match="did you mean `on_miss`"):
        rolltape.Tape.from_config({"on_mis": "live"})
    assert list(tmp_path.iterdir()) == []


def test_a_relative_directory_is_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In verl every actor resolves it against a working directory of its own."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with rolltape.Tape("runs/base", mode="record") as tape:
        monkeypatch.chdir(tmp_path / "elsewhere")
        Rollout(tape).run([0])
        assert tape.dir == str(tmp_path / "runs/base")
        assert repr(tape) == f"Tape({str(tmp_path / 'runs/base')!r}, mode='record')"
    assert len(files(tmp_path / "runs/base")) == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_pickled_tape_is_the_same_tape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it is handed to a Ray actor, which runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    with rolltape.Tape("t", mode="auto", steps="0-9", fingerprint={"seed": 1}) as tape:
        Rollout(tape).run([0])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pickle.loads(pickle.dumps(tape)) as other:
        assert (other.dir, other.settings.steps) == (tape.dir, tape.settings.steps)
        assert Rollout(other).run([0])[0]["meta"]["step"] == 0
    assert pickle.loads(pickle.dumps(rolltape.Tape())).is_off


def test_a_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert rolltape.Tape("~/t", mode="record").dir == str(tmp_path / "t")


@pytest.mark.parametrize(
    ("inside", "warns"),
    [
        ("ray/session_2026-11-15_10-00-00_123456_78/runtime_resources/working_dir_files/_ray_pkg_1/t", True),
        ("ray/session_latest/t", True),
        ("scratch/session_2026-11-15_10-00-00_123456_78/t", True),
        ("ray/session_2026", True),
        ("ray/t", False),
        ("session_notes/t", False),
    ],
)
def test_a_directory_inside_a_ray_session_is_warned_about(
    tmp_path: Path,
    inside: str,
    warns: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / inside).parent.mkdir(parents=True)
    monkeypatch.chdir((tmp_path / inside).parent)
    rolltape.Tape(os.path.basename(inside), mode="record")
    assert ("inside a Ray session folder" in caplog.text) == warns
    assert not warns or str(tmp_path / inside) in caplog.text


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host/tape", "not kept at ftp://"),
        ("https://host/tape?sig=S3CRET", "not kept at https://"),
        ("s3://KEY:S3CRET@bucket/tape", "no user, key or query"),
        ("az://box/tape?sv=1&sig=S3CRET", "no user, key or query"),
        ("s3:///tape", "names no bucket"),
        ("gs://bucket/a/../b", "cannot be used"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_and_its_secrets_are_not_shown(
    url: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said) as caught:
        rolltape.Tape(url, mode="record")
    assert "S3CRET" not in str(caught.value)
    assert "KEY" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_store_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(rolltape.MissingDependencyError, match=r'pip install "rolltape\[store\]"'):
        rolltape.Tape("s3://bucket/tape", mode="record")


def test_an_omegaconf_config_is_resolved_in_its_section_only() -> None:
    omegaconf = optional("omegaconf")
    config = omegaconf.OmegaConf.create(
        {
            "root": "runs",
            "broken": "${nowhere}",
            "unset": "???",
            "rolltape": {
                "mode": "replay",
                "dir": "${root}/a",
                "steps": ["0-3", 9],
                "match": {"seed": "warn"},
            },
        }
    )
    settings = resolve({}, {}, load_file(config))
    assert (settings.dir, str(settings.steps), settings.match) == ("runs/a", "0-3,9", {"seed": "warn"})
    assert load_file(config.rolltape) == load_file(config) == load_file({"rolltape": config.rolltape})
    for broken in ({"dir": "???"}, {"rolltape": {"dir": "${nowhere}"}}):
        with pytest.raises(ConfigError, match="cannot be resolved"):
            load_file(omegaconf.OmegaConf.create(broken))
    with pytest.raises(ConfigError, match="must be a mapping of options"):
        load_file(omegaconf.OmegaConf.create([1]))


def test_what_the_program_decides_goes_with_what_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLTAPE_DIR", str(tmp_path / "t"))
    monkeypatch.setenv("ROLLTAPE_MODE", "record")
    monkeypatch.setenv("ROLLTAPE_SPLIT", "val")
    tape = rolltape.Tape.from_env(fingerprint={"model": "a"}, split="train")
    assert (tape.settings.mode, tape.settings.split, tape.settings.fingerprint) == (
        "record", "train", {"model": "a"},
    )  # fmt: skip
    assert rolltape.Tape(fingerprint={"model": "a"}, split="train").settings == tape.settings
    with pytest.raises(TypeError, match="modle"):
        rolltape.Tape.from_env(modle="record")


@pytest.mark.parametrize("name", ["gate.json", "gate.yaml"])
@pytest.mark.parametrize("kind", ["a pipe", "a device", "deep", "large"])
def test_a_file_that_was_made_to_hold_us_up(tmp_path: Path, name: str, kind: str) -> None:
    file = tmp_path / name
    if kind == "a pipe":
        os.mkfifo(file)
    elif kind == "a device":
        file.symlink_to("/dev/zero")
    elif kind == "deep":
        file.write_text("[" * 20_000)
    else:
        with file.open("wb") as opened:
            opened.truncate(2**43)
    with pytest.raises(ConfigError):
        load_file(file)
