"""What RolloutSkip V1 and V2 configurations mean for a tape. Pure.

V1   rollout.skip_rollout, rollout.skip_dump_dir       one recording, played at every later step
V2   rollout.skip.enable, dump_dir, max_dump_step, action, steps
       cache        every step, also past max_dump_step
       repeat       steps 1 to max_dump_step, then round robin
       repeat_last  steps 1 to max_dump_step, then the last of them
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from rolltape.errors import ConfigError
from rolltape.integrations.verl.config import TAPE_PREFIX, Run, pick

_ROLLOUT = "actor_rollout_ref.rollout"
V1_DIR, V2_DIR = "/tmp/verl/rollout_dump", "~/.verl/rollout_dump"


class SkipAction(Enum):
    """What happens at steps that are not recorded, with verl's names."""

    CACHE = "cache"
    REPEAT = "repeat"
    REPEAT_LAST = "repeat_last"


@dataclass(frozen=True, slots=True)
class SkipOptions:
    """The options of one of the two configurations."""

    enable: bool
    dump_dir: str
    """As the user wrote it, followed by the folder of this run."""
    tape: dict[str, Any]
    """Options of a tape."""
    val: bool = False
    key: str = "rollout.skip.dump_dir"
    """The option that names the directory, for messages."""
    old_dump: str | None = None
    """Where verl's own V1 would have left its one dump."""
    deprecated: str | None = None
    """The old keys that were used, for a warning."""


def read_options(config: Any) -> SkipOptions:
    """Read V2 keys if ``skip`` is enabled, else V1 keys if there are any."""
    section, old = pick(config, f"{_ROLLOUT}.skip"), pick(config, f"{_ROLLOUT}.skip_rollout")
    enabled = bool(pick(section, "enable", False))
    if old is not None and not enabled:
        folder = str(pick(config, f"{_ROLLOUT}.skip_dump_dir", V1_DIR))
        tape = {"mode": "auto", "steps": "1", "beyond": "last"}
        run = Run.of(config)
        return SkipOptions(
            bool(old), _join(folder, run.v1_folder), tape,
            key="rollout.skip_dump_dir", old_dump=_join(folder, run.v1_file),
            deprecated="skip_rollout, skip_dump_dir",
        )  # fmt: skip
    return SkipOptions(
        enable=enabled,
        dump_dir=_join(str(pick(section, "dump_dir", V2_DIR)), Run.of(config).folder),
        tape=_v2(section) if enabled else {},
        val=bool(pick(section, "val", False)),
    )


def names_a_tape(config: Any) -> bool:
    """Whether the directory of an enabled RolloutSkip has the prefix of a tape."""
    keys = (("skip.enable", "skip.dump_dir"), ("skip_rollout", "skip_dump_dir"))
    return any(
        pick(config, f"{_ROLLOUT}.{switch}", False)
        and str(pick(config, f"{_ROLLOUT}.{folder}", "")).startswith(TAPE_PREFIX)
        for switch, folder in keys
    )


def _v2(section: Any) -> dict[str, Any]:
    action, last = _action(pick(section, "action", "cache")), int(pick(section, "max_dump_step", 1))
    steps = _steps(pick(section, "steps"))
    if action is SkipAction.CACHE:
        return {"mode": "auto", "steps": steps}
    if last < 1 and steps is None:
        raise ConfigError(
            f"action {action.value} needs steps to repeat, but max_dump_step is {last}",
            where=f"{_ROLLOUT}.skip",
            hint="set max_dump_step to at least 1, or action to cache",
        )
    beyond = "cycle" if action is SkipAction.REPEAT else "last"
    return {"mode": "auto", "steps": steps or f"1-{last}", "beyond": beyond}


def _action(value: Any) -> SkipAction:
    text = str(getattr(value, "value", value))
    try:
        return SkipAction(text)
    except ValueError:
        words = ", ".join(action.value for action in SkipAction)
        raise ConfigError(f"{text!r} is not one of {words}", where=f"{_ROLLOUT}.skip.action") from None


def _steps(value: Any) -> Any:
    """A list of steps, or of ranges such as ``[1, 5]`` or ``"1-5"``; None if not given."""
    if value is None or (hasattr(value, "__len__") and not len(value)):
        return None
    if isinstance(value, (str, range)) or not hasattr(value, "__iter__"):
        return value
    pieces = []
    for item in value:
        ends = list(item) if hasattr(item, "__iter__") and not isinstance(item, str) else None
        if ends is not None and len(ends) != 2:
            raise ConfigError(f"{ends} is not a range of steps", hint="write [first, last]")
        pieces.append(str(item) if ends is None else f"{ends[0]}-{ends[1]}")
    return ",".join(pieces)


def _join(folder: str, run: str) -> str:
    return f"{folder.removeprefix(TAPE_PREFIX).rstrip('/')}/{run}"
