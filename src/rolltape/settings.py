"""The options of a tape, and which source wins: argument > environment > file > default.

Pure: reads no file (``config_file`` does) and opens no tape.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeAlias

from rolltape.choices import NamedOption, parse_size
from rolltape.errors import ConfigError, RolltapeError
from rolltape.key import check_name
from rolltape.policy import Mode, OnMiss, Overwrite, Policy, VersionRule
from rolltape.steps import ALL_STEPS, NO_STEPS, StepSelector, as_step

__all__ = ["By", "MatchLevel", "OnError", "Settings", "resolve"]

_PREFIX = "ROLLTAPE_"

# For each option that was given: where it was given, and the raw value.
_Given: TypeAlias = dict[str, tuple[str, Any]]


class OnError(NamedOption):
    """What a failure to record does to the training run."""

    RAISE = "raise"
    WARN = "warn"


class MatchLevel(NamedOption):
    """What happens when a part of the fingerprint differs."""

    ERROR = "error"
    WARN = "warn"
    IGNORE = "ignore"


class By(NamedOption):
    """How a stage is asked."""

    STEP = "step"
    PROMPT = "prompt"


@dataclass(frozen=True, slots=True)
class Settings:
    """Every option of a tape, read and checked. Options that contradict each other are a ``ConfigError``.

    >>> Settings(dir="runs/baseline", mode=Mode.REPLAY).policy.mode is Mode.REPLAY
    True
    """

    dir: str | None = None
    """The tape: a directory or an object-store prefix."""

    mode: Mode = Mode.OFF
    """What the tape does. ``resolve`` makes it ``auto`` if a ``dir`` is given and no mode is."""

    on_miss: OnMiss | None = None
    """What happens at a step that is not on the tape; ``None``: error in replay, record in auto."""

    beyond: OnMiss = OnMiss.LIVE
    """What happens outside ``steps``."""

    steps: StepSelector = ALL_STEPS
    """Where the tape acts."""

    overwrite: Overwrite = Overwrite.ERROR
    """What mode ``record`` does at a step that is on the tape already."""

    out: str | None = None
    """A second tape for what a replay computes: its metrics, and the stages that ran live."""

    stages: tuple[str, ...] | None = None
    """The stages that are replayed; others run live. ``None``: all but those declared ``replay=False``."""

    split: str = "train"
    """The split that stages record to, unless one is named."""

    rank: int = 0
    """Which process of ``world_size`` this is."""

    world_size: int = 1
    """How many processes record a shard of each step."""

    reshard: bool = False
    """Whether a replay may divide what another number of ranks recorded among its own, by samples."""

    by: By = By.STEP
    """How rollouts of engines and trainers are asked: by their step, or each sample by its prompt."""

    version: str = "same"
    """With ``by="prompt"``: whose samples may answer, ``same``, ``any``, ``nearest`` or ``<= 2 old``."""

    draw: int | None = None
    """With ``by="prompt"``: the seed that picks of more samples than are asked for; ``None``: the first."""

    fingerprint: Mapping[str, object] = field(default_factory=dict)
    """What must match between recording and replay, in named parts."""

    match: Mapping[str, MatchLevel] = field(default_factory=dict)
    """What happens when a part of the fingerprint differs, by part; ``error`` for parts not listed."""

    max_keep: int | None = None
    """How many recorded steps to keep per stage (the last ones written); ``None`` keeps all."""

    pin_steps: StepSelector = NO_STEPS
    """Steps that ``max_keep`` never deletes."""

    on_error: OnError = OnError.RAISE
    """What a failure to record does to the training run."""

    background: bool = True
    """Whether a background thread writes recordings while training continues."""

    random_state: bool = True
    """Whether a recording keeps the random state the live call left behind, and replay restores it."""

    prefetch: bool = True
    """Whether replay reads the next step ahead."""

    max_pending_bytes: int = 2**30
    """How much data may wait to be written before recording blocks, and how much may be read ahead.

    A number of bytes, or text such as ``"512MB"`` or ``"1GiB"``.
    """

    recycle: int = 4 * 2**30
    """How much memory of batches that the trainer has let go of is kept for the next ones of a replay.

    A number of bytes, or text such as ``"8GB"``; 0 gives every batch fresh memory.
    """

    pin: bool = False
    """Whether the large tensors of a replay lie in page-locked memory, from which devices copy meanwhile."""

    lazy: bool = False
    """Whether the columns of a replayed batch are decoded only when somebody looks at them.

    They are where they stand in a dict, a ``TensorDict`` or a ``DataProto``.
    """

    spool: str | None = None
    """Where recordings for an object store wait on this machine; ``None``: in the user's cache directory."""

    max_spool_bytes: int = 10 * 2**30
    """How much may wait there before recording blocks. A number of bytes, or text such as ``"50GB"``."""

    def __post_init__(self) -> None:
        if self.rank >= self.world_size:
            raise ConfigError(
                f"rank must be less than world_size {self.world_size}, not {self.rank}",
                hint="ranks go from 0 to world_size - 1; set both",
            )
        if self.mode is not Mode.OFF and self.dir is None:
            raise ConfigError(
                f"mode is {self.mode}, but dir (the path of the tape) is not set",
                hint=f"set dir as an argument, in the config file or as {_PREFIX}DIR; or set mode to off",
            )

        if self.reshard and self.mode not in (Mode.REPLAY, Mode.OFF):
            raise ConfigError(
                f"reshard is set, but mode is {self.mode}: only mode replay divides steps among other ranks",
                hint="set mode to replay, or remove reshard",
            )
        if self.by is By.STEP and (self.version != "same" or self.draw is not None):
            named = "version" if self.version != "same" else "draw"
            raise ConfigError(
                f"{named} is set, but by is step: it says which samples answer a prompt",
                hint="set by to prompt, or remove it",
            )
        if self.out is not None and self.mode is not Mode.REPLAY:
            raise ConfigError(
                f"out is set, but mode is {self.mode}: only mode replay writes a second tape",
                hint="set mode to replay, or remove out: recordings go to dir",
            )

    @property
    def policy(self) -> Policy:
        """The options that decide what happens at a step."""
        return Policy(self.mode, self.on_miss, self.steps, self.beyond, self.overwrite)

    def refuse_prompts(self, who: str) -> None:
        """For what can only be asked by its steps: a ``ConfigError`` where prompts are to be asked for."""
        if self.by is By.PROMPT and self.mode is not Mode.OFF:
            raise ConfigError(
                f'{who} is asked by its steps, and cannot be with by="prompt"',
                hint=f"leave by out, and unset {_PREFIX}BY",
            )


def resolve(
    arguments: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    file: Mapping[str, Any] | None = None,
) -> Settings:
    """Combine the given options into settings: argument > environment > file > default, for each option.

    An argument or config key that is ``None`` and a variable that is empty count as not given. A mapping
    replaces the one from a weaker source; the two are not merged. ``file`` is what
    ``config_file.load_file`` returns.

    >>> settings = resolve({"mode": "replay"}, {"ROLLTAPE_STEPS": "0-9"}, {"dir": "runs/a", "mode": "record"})
    >>> str(settings.mode), str(settings.steps), settings.dir
    ('replay', '0-9', 'runs/a')
    """
    given = {
        **_from_names(file or {}, "config key"),
        **_from_environ(environ or {}),
        **_from_names(arguments, "argument"),
    }
    values = {name: _checked(name, source, raw) for name, (source, raw) in given.items()}
    values.setdefault("mode", Mode.AUTO if "dir" in values else Mode.OFF)
    try:
        return Settings(**values)
    except ConfigError as error:
        options = ("mode", "out", "rank", "world_size", "reshard", "version", "draw")
        named = [given[name][0] for name in options if name in given and name in error.what]
        raise ConfigError(error.what, where=", ".join(named) or None, hint=error.hint) from None


def _from_names(named: Mapping[str, Any], kind: str) -> _Given:
    for name in named:
        if name not in _READ:
            nearest = get_close_matches(str(name).lower(), _READ, n=1)
            raise ConfigError(
                f"unknown option {name!r}; the options are {', '.join(_READ)}",
                where=f"{kind} `{name}`",
                hint=f"did you mean `{nearest[0]}`?" if nearest else "remove it",
            )
    return {name: (f"{kind} `{name}`", value) for name, value in named.items() if value is not None}


def _from_environ(environ: Mapping[str, str]) -> _Given:
    given: _Given = {}
    for variable, value in environ.items():
        if not variable.startswith(_PREFIX):
            continue
        name = variable[len(_PREFIX) :].lower()
        if name in _READ and variable.isupper():
            if value.strip():
                given[name] = (f"environment variable {variable}", value)
        elif nearest := _misspelled(name):
            raise ConfigError(
                f"unknown option {variable}",
                where=f"environment variable {variable}",
                hint=f"did you mean {_PREFIX}{nearest.upper()}? If it is for another tool, rename it",
            )
    return given


def _misspelled(name: str) -> str | None:
    """The option that a variable probably meant; None if no option has a name like it."""
    swapped = [known for known in _READ if sorted(known) == sorted(name)]
    nearest = swapped or get_close_matches(name, _READ, n=1, cutoff=0.85)
    return nearest[0] if nearest else None


def _checked(name: str, source: str, raw: object) -> Any:
    try:
        return _READ[name](raw)
    except RolltapeError as error:
        raise ConfigError(error.what, where=source, causes=error.causes, hint=error.hint) from None


def _read_dir(value: object) -> str:
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise ConfigError(f"{value!r} is not a path", hint='give a directory, as in "runs/baseline"')
    return path


def _read_stages(value: object) -> tuple[str, ...]:
    """Names of stages: a list, or text with commas."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        raise ConfigError(f"{value!r} is not a list of stage names", hint='write "rollout,reward"')
    return tuple(check_name("stage", name.strip() if isinstance(name, str) else name) for name in names)


def _read_count(value: object) -> int:
    is_digits = isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,19}\s*", value)
    return as_step(int(str(value)) if is_digits else value, "the number")


def _read_positive(value: object) -> int:
    if number := _read_count(value):
        return number
    raise ConfigError("the number must be at least 1, not 0", hint="leave it out for the default")


def _read_bool(value: object) -> bool:
    word = str(value).strip().lower()
    if word in ("true", "yes", "on", "1"):
        return True
    if word in ("false", "no", "off", "0"):
        return False
    raise ConfigError(f"{value!r} is neither true nor false", hint="write true or false")


def _read_version(value: object) -> str:
    text = str(value).strip()
    VersionRule.parse(text)
    return text


def _read_recycle(value: object) -> int:
    return 0 if str(value).strip() == "0" else parse_size(value)


def _read_parts(value: object) -> dict[str, Any]:
    """Named parts: a mapping, or the text of a JSON object."""
    parts = value
    if isinstance(value, str):
        try:
            parts = json.loads(value)
        except ValueError as error:
            raise ConfigError(f"{value!r} is not JSON: {error}", hint='write {"model": "…"}') from None
    if not isinstance(parts, Mapping) or not all(isinstance(name, str) for name in parts):
        raise ConfigError(f"{value!r} is not a mapping from names to values", hint='write {"model": "…"}')
    return dict(parts)


def _read_match(value: object) -> dict[str, MatchLevel]:
    found = {part: MatchLevel.parse(level) for part, level in _read_parts(value).items()}
    inner = [part for part, level in found.items() if "." in part and level is not MatchLevel.IGNORE]
    if inner:
        raise ConfigError(
            f"{inner[0]} is only a place in a part of the fingerprint, and can only be ignored",
            hint=f'write {{"{inner[0]}": "ignore"}}, or name the whole part',
        )
    return found


_READ: dict[str, Callable[[object], Any]] = {
    "dir": _read_dir,
    "mode": Mode.parse,
    "on_miss": OnMiss.parse,
    "beyond": OnMiss.parse,
    "steps": StepSelector.parse,
    "overwrite": Overwrite.parse,
    "out": _read_dir,
    "stages": _read_stages,
    "split": lambda value: check_name("split", value),
    "rank": _read_count,
    "world_size": _read_positive,
    "reshard": _read_bool,
    "by": By.parse,
    "version": _read_version,
    "draw": _read_count,
    "fingerprint": _read_parts,
    "match": _read_match,
    "max_keep": _read_positive,
    "pin_steps": StepSelector.parse,
    "on_error": OnError.parse,
    "background": _read_bool,
    "random_state": _read_bool,
    "prefetch": _read_bool,
    "max_pending_bytes": parse_size,
    "recycle": _read_recycle,
    "pin": _read_bool,
    "lazy": _read_bool,
    "spool": _read_dir,
    "max_spool_bytes": parse_size,
}
"""How each option is read from the value that was given."""
