"""Options come from an argument, the environment, a file or a default, in that order; errors say which."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from rolltape import settings as settings_module
from rolltape.choices import parse_size
from rolltape.config_file import load_file
from rolltape.errors import ConfigError, MissingDependencyError
from rolltape.policy import Mode, OnMiss, Overwrite, Policy
from rolltape.settings import By, MatchLevel, OnError, Settings, resolve
from rolltape.steps import ALL_STEPS, NO_STEPS, StepSelector
from tests.stacks import optional

GIVEN: dict[str, tuple[Any, str, Any]] = {
    # option: as an argument or in a file, as a variable, as a setting
    "dir": ("runs/a", "runs/a", "runs/a"),
    "mode": ("mock", "replay", Mode.REPLAY),
    "on_miss": ("nearest", "nearest", OnMiss.NEAREST),
    "beyond": ("last", "last", OnMiss.LAST),
    "steps": (range(10), "0-9", StepSelector.parse("0-9")),
    "overwrite": ("keep", "KEEP", Overwrite.KEEP),
    "out": ("runs/b", "runs/b", "runs/b"),
    "stages": (["rollout", "reward"], "rollout,reward", ("rollout", "reward")),
    "split": ("val", "val", "val"),
    "rank": (1, "1", 1),
    "world_size": (4, "4", 4),
    "reshard": (True, "yes", True),
    "by": ("prompt", "PROMPT", By.PROMPT),
    "version": ("<= 2 old", " <= 2 old ", "<= 2 old"),
    "draw": (7, "7", 7),
    "fingerprint": ({"model": "q"}, '{"model": "q"}', {"model": "q"}),
    "match": (
        {"seed": "warn", "sampling.n": "ignore"},
        '{"seed": "warn", "sampling.n": "ignore"}',
        {"seed": MatchLevel.WARN, "sampling.n": MatchLevel.IGNORE},
    ),
    "max_keep": (3, " 3 ", 3),
    "pin_steps": ([0, 5], "0,5", StepSelector.parse("0,5")),
    "on_error": ("warn", "warn", OnError.WARN),
    "background": (False, "false", False),
    "random_state": (False, "off", False),
    "prefetch": (False, "0", False),
    "max_pending_bytes": ("512MB", "512000000", 512_000_000),
    "recycle": ("2GiB", "2147483648", 2**31),
    "pin": (True, "1", True),
    "lazy": (True, "1", True),
    "spool": ("spool/a", "spool/a", "spool/a"),
    "max_spool_bytes": ("50GB", "50GB", 50 * 10**9),
}


def test_every_option_is_read_from_every_source() -> None:
    assert list(GIVEN) == [option.name for option in fields(Settings)] == list(settings_module._READ)
    expected = Settings(**{name: value for name, (_, _, value) in GIVEN.items()})
    written = {name: value for name, (value, _, _) in GIVEN.items()}
    assert resolve(written) == expected
    assert resolve({}, {}, written) == expected
    assert resolve({}, {f"ROLLTAPE_{name.upper()}": text for name, (_, text, _) in GIVEN.items()}) == expected
    assert resolve({}, {}, load_file(expected)) == expected


def test_every_option_has_a_docstring() -> None:
    source = Path(settings_module.__file__).read_text(encoding="utf-8").splitlines()
    for option in fields(Settings):
        line = next(n for n, text in enumerate(source) if text.startswith(f"    {option.name}: "))
        assert source[line + 1].strip().startswith('"""'), option.name


def test_the_defaults() -> None:
    settings = resolve({})
    assert settings == Settings()
    assert (settings.steps, settings.pin_steps) == (ALL_STEPS, NO_STEPS)
    assert settings.max_pending_bytes == 2**30
    assert settings.recycle == 2**32
    assert resolve({"recycle": 0}).recycle == resolve({}, {"ROLLTAPE_RECYCLE": "0"}).recycle == 0


def test_argument_over_environment_over_file_over_default() -> None:
    file, environ, arguments = {"split": "f", "dir": "f"}, {"ROLLTAPE_SPLIT": "e"}, {"split": "a"}
    assert resolve(arguments, environ, file).split == "a"
    assert resolve({}, environ, file).split == "e"
    assert resolve({}, {}, file).split == "f"
    assert resolve({"split": None}, {"ROLLTAPE_SPLIT": ""}, {"split": None}).split == "train"
    assert resolve(arguments, environ, file).dir == "f"


def test_what_a_stronger_source_replaces_is_not_read() -> None:
    assert resolve({"mode": "off"}, {"ROLLTAPE_MODE": "nonsense"}).mode is Mode.OFF


def test_the_mode_follows_the_dir() -> None:
    assert resolve({"dir": "runs/a"}).mode is Mode.AUTO
    assert resolve({"dir": Path("runs") / "a"}).dir == str(Path("runs") / "a")
    assert resolve({}).mode is Mode.OFF
    assert resolve({"dir": "runs/a", "mode": "off"}).mode is Mode.OFF
    with pytest.raises(ConfigError, match=r"dir .* is not set") as caught:
        resolve({}, {"ROLLTAPE_MODE": "replay"})
    assert caught.value.where == "environment variable ROLLTAPE_MODE"


def test_contradictions_are_errors_however_settings_are_made() -> None:
    with pytest.raises(ConfigError, match="rank must be less than world_size 2, not 2") as caught:
        resolve({"rank": 2}, {"ROLLTAPE_WORLD_SIZE": "2"})
    assert caught.value.where == "argument `rank`, environment variable ROLLTAPE_WORLD_SIZE"
    with pytest.raises(ConfigError, match=r"dir .* is not set"):
        replace(Settings(), mode=Mode.REPLAY)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("dir", "", "not a path"),
        ("dir", 3, "not a path"),
        ("dir", b"runs", "not a path"),
        ("mode", "recrod", "'recrod' is not one of off, record"),
        ("mode", True, "True is not one of"),
        ("on_miss", "skip", "'skip'"),
        ("beyond", "skip", "'skip'"),
        ("steps", "0-x", "'0-x'"),
        ("overwrite", True, "True"),
        ("split", "a/b", "'/' at position 2"),
        ("rank", "two", "'two'"),
        ("rank", -1, "-1"),
        ("world_size", 0, "must be at least 1"),
        ("fingerprint", "{", "not JSON"),
        ("fingerprint", "[1]", "not a mapping from names"),
        ("fingerprint", {1: 2}, "not a mapping from names"),
        ("match", {"seed": "loud"}, "'loud' is not one of error, warn, ignore"),
        ("max_keep", 0, "must be at least 1"),
        ("max_keep", True, "True"),
        ("pin_steps", [-1], "-1"),
        ("on_error", "ignore", "'ignore'"),
        ("background", "maybe", "'maybe'"),
        ("max_pending_bytes", "lots", "'lots'"),
    ],
)
def test_an_error_names_the_source(name: str, value: Any, problem: str) -> None:
    for where, given in (("argument", ({name: value}, {}, {})), ("config key", ({}, {}, {name: value}))):
        with pytest.raises(ConfigError, match=problem) as caught:
            resolve(*given)
        assert caught.value.where == f"{where} `{name}`"
    if isinstance(value, str) and value:
        with pytest.raises(ConfigError, match=problem) as caught:
            resolve({}, {f"ROLLTAPE_{name.upper()}": value})
        assert caught.value.where == f"environment variable ROLLTAPE_{name.upper()}"


def test_an_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown option 'on-miss'") as caught:
        resolve({}, {}, {"on-miss": "error"})
    assert caught.value.where == "config key `on-miss`"
    assert "did you mean `on_miss`?" in str(caught.value)
    with pytest.raises(ConfigError, match="unknown option 'directory'; the options are dir, mode") as caught:
        resolve({"directory": "x"})
    assert caught.value.where == "argument `directory`"
    with pytest.raises(ConfigError, match="unknown option False"):
        resolve({}, {}, {False: 1})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "name", ["MOED", "STEP", "ONMISS", "MAX_KEPT", "OVERWITE", "DIRS", "mode", "Fingerprint"]
)
def test_a_misspelled_variable_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown option ROLLTAPE_") as caught:
        resolve({}, {f"ROLLTAPE_{name}": "x"})
    assert caught.value.where == f"environment variable ROLLTAPE_{name}"
    assert "did you mean ROLLTAPE_" in str(caught.value.hint)


@pytest.mark.parametrize(
    "name", ["CACHE", "STACK", "VERL", "ROLL_SRC", "HOME", "DEBUG", "LOG", "NODE", "TEST_BUCKET", "", "PATH"]
)
def test_other_tools_variables_are_left_alone(name: str) -> None:
    assert resolve({}, {f"ROLLTAPE_{name}": "x", "MODE": "replay", "rolltape_mode": "x"}) == Settings()


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (1, 1),
        ("1024", 1024),
        ("1kb", 1000),
        ("1 KiB", 1024),
        ("0.5GiB", 2**29),
        ("2G", 2 * 10**9),
        ("3TiB", 3 * 2**40),
    ],
)
def test_sizes(value: object, size: int) -> None:
    assert parse_size(value) == size


@pytest.mark.parametrize("value", [0, -1, True, None, "", "MB", "1XB", "1e9", "-1MB", "0.1B", "1 2MB"])
def test_sizes_that_are_none(value: object) -> None:
    with pytest.raises(ConfigError, match="must be a number of bytes, at least 1"):
        parse_size(value)


def test_the_policy_is_what_decides() -> None:
    settings = resolve({"dir": "a", "mode": "auto", "steps": "1-3", "beyond": "cycle", "on_miss": "error"})
    steps = StepSelector.parse("1-3")
    assert settings.policy == Policy(Mode.AUTO, OnMiss.ERROR, steps, OnMiss.CYCLE, Overwrite.ERROR)


SECTION = {"mode": "replay", "dir": "runs/a"}


@dataclass
class Section:
    mode: str = "replay"
    dir: str = "runs/a"


@dataclass
class Config:
    rolltape: Section
    epochs: int = 3


@pytest.mark.parametrize(
    "source",
    [SECTION, {"rolltape": SECTION}, {"rolltape": Section(), "trainer": {}}, Section(), Config(Section())],
)
def test_a_config_in_memory(source: object) -> None:
    assert load_file(source) == SECTION


@pytest.mark.parametrize("source", [[1], 3, None, Section, {"rolltape": "replay"}])
def test_a_config_without_named_options(source: object) -> None:
    if source is None:
        assert load_file(source) == load_file({"rolltape": None}) == {}
        return
    with pytest.raises(ConfigError, match="must be a mapping of options"):
        load_file(source)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", json.dumps(SECTION)),
        ("a.json", json.dumps({"rolltape": SECTION, "trainer": {}})),
        ("a.yaml", "mode: replay\ndir: runs/a\n"),
        ("a.yml", "trainer: {epochs: 3}\nrolltape:\n  mode: replay\n  dir: runs/a\n"),
    ],
)
def test_a_config_file(tmp_path: Path, name: str, text: str) -> None:
    optional("yaml")
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert load_file(path) == load_file(str(path)) == SECTION


def test_off_in_yaml_means_off(tmp_path: Path) -> None:
    optional("yaml")
    path = tmp_path / "a.yaml"
    path.write_text("rolltape: {mode: off, dir: runs/a, steps: 0-9}", encoding="utf-8")
    assert resolve({}, {}, load_file(path)).mode is Mode.OFF
    path.write_text("", encoding="utf-8")
    assert load_file(path) == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{"),
        ("a.yaml", "a: [1"),
        ("a.yaml", "- 1"),
        ("a.json", "3"),
        ("a.toml", ""),
        ("gone.yaml", None),
    ],
)
def test_a_bad_config_file_is_named(tmp_path: Path, name: str, text: str | None) -> None:
    optional("yaml")
    path = tmp_path / name
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_file(path)
    assert caught.value.where == str(path)


def test_yaml_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("mode: replay", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingDependencyError, match="PyYAML") as caught:
        load_file(path)
    assert 'pip install "rolltape[yaml]"' in str(caught.value)


def test_what_says_which_samples_answer_goes_with_prompts() -> None:
    for name, value in {"version": "any", "draw": 3}.items():
        with pytest.raises(ConfigError, match=f"{name} is set, but by is step"):
            resolve({"dir": "runs/a", name: value})
    with pytest.raises(ConfigError, match="none of same, any, nearest"):
        resolve({"dir": "runs/a", "by": "prompt", "version": "newest"})
    with pytest.raises(ConfigError, match="can only be ignored"):
        resolve({"dir": "runs/a", "match": {"sampling.n": "warn"}})
