"""Which tape a verl run uses, and how: pure decisions from its configuration and the environment.

Precedence as everywhere: environment > configuration > default. What ``skip.*`` says becomes:

    action: cache     mode auto, missing steps are recorded
    action: repeat    mode auto, missing steps play the nearest recorded one
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolltape.errors import ConfigError
from rolltape.integrations.verl.config import ROLES, TAPE_PREFIX, Run, fingerprint, pick, plain
from rolltape.policy import Mode
from rolltape.settings import Settings, resolve
from rolltape.word import Word

SWITCH = "ROLLTAPE_VERL"
VAL = "ROLLTAPE_VERL_VAL"
REWARD = "ROLLTAPE_VERL_REWARD"
GROUPS = "ROLLTAPE_VERL_GROUPS"
_OWN = {"val": VAL, "reward": REWARD, "groups": GROUPS}
"""Options of this integration beside those of every tape, under ``rolltape.verl``."""


class Rewards(Word):
    """Where the rewards of replayed responses come from."""

    RECORDED = "recorded"
    RECOMPUTE = "recompute"


class Groups(Word):
    """What happens where a recorded batch has another number of prompts than the trainer asks for (V1)."""

    REFUSE = "refuse"
    CYCLE = "cycle"
    """The recorded groups are repeated in order, or the first of them taken."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What this integration can be asked for beside the options of every tape."""

    val: bool = False
    """Whether validation is recorded too, under the split ``val``."""
    rewards: Rewards = Rewards.RECORDED
    groups: Groups = Groups.REFUSE


@dataclass(frozen=True, slots=True)
class Plan:
    """How one role of a run uses a tape."""

    role: str
    """One of ``ROLES``, or ``*`` for all of them."""
    settings: Settings
    wishes: Wishes
    origin: str
    """What the user said to get here, for messages."""
    relative_to: str | None = None
    """Where a relative directory was resolved; None if it was absolute."""


def opted_in(config: Any, environ: Mapping[str, str]) -> bool:
    """Whether the user asked for tapes: by environment, a ``tape:`` directory, or a section ``rolltape``."""
    switch = environ.get(SWITCH, "").strip().lower()
    if switch in ("0", "false", "no", "off"):
        return False
    if switch or _env_names_a_tape(environ):
        return True
    if pick(config, "rolltape") is not None:
        return True
    return any(_dump_dir(config, role).startswith(TAPE_PREFIX) and _enabled(config, role) for role in ROLES)


def plans(config: Any, environ: Mapping[str, str], cwd: str) -> list[Plan]:
    """What each role does; one plan for all (``*``) where the environment or ``rolltape`` names the tape."""
    section = dict(plain(pick(config, "rolltape")) or {})
    own = dict(section.pop("verl", None) or {})
    wishes = _wishes(own, environ)
    parts = fingerprint(config) | dict(section.pop("fingerprint", None) or {})
    if _env_names_a_tape(environ) or section.get("dir"):
        given = {role: _from_skip(config, role) for role in ROLES if _enabled(config, role)}
        chosen = next(iter(given.values()), {})
        file = {**chosen, **section}
        origin = "ROLLTAPE_DIR" if environ.get("ROLLTAPE_DIR") else "rolltape.dir"
        return [_plan("*", file, environ, cwd, parts, origin, wishes)]
    found = []
    for role in ROLES:
        if _enabled(config, role):
            folder = os.path.join(_dump_dir(config, role).removeprefix(TAPE_PREFIX), Run.of(config).folder)
            file = {**_from_skip(config, role), **section, "dir": folder}
            found.append(_plan(role, file, environ, cwd, parts, f"skip.{role}.dump_dir", wishes))
    return [plan for plan in found if plan.settings.mode is not Mode.OFF]


def _plan(
    role: str, file: dict[str, Any], environ: Mapping[str, str], cwd: str, parts: dict[str, Any], origin: str,
    wishes: Wishes,
) -> Plan:  # fmt: skip
    before = resolve({}, environ, file)
    if before.mode is Mode.OFF or before.dir is None:
        return Plan(role, before, wishes, origin)
    folder = os.path.expanduser(before.dir)
    relative = None if os.path.isabs(folder) else cwd
    arguments = {"dir": os.path.join(cwd, folder), "fingerprint": parts | dict(before.fingerprint)}
    match = {part: str(level) for part, level in before.match.items()}
    if wishes.groups is Groups.CYCLE:
        match.setdefault("data", "warn")  # sizes are part of it, and another size is what was asked for
    if wishes.rewards is Rewards.RECOMPUTE:
        match["reward"] = "ignore"
    arguments["match"] = match
    return Plan(role, resolve(arguments, environ, file), wishes, origin, relative)


def _from_skip(config: Any, role: str) -> dict[str, Any]:
    action = str(pick(config, f"skip.{role}.action", "cache"))
    steps = list(pick(config, f"skip.{role}.steps", []))
    if action not in ("cache", "repeat"):
        raise ConfigError(
            f"skip.{role}.action is {action!r}, which a tape cannot do", hint="use cache or repeat"
        )
    # Nothing is said for `cache`: recording is what `auto` does by itself, and a replay must not begin to.
    return {"mode": "auto", "on_miss": "nearest" if action == "repeat" else None, "steps": steps}


def _env_names_a_tape(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("ROLLTAPE_DIR", "").strip())


def _enabled(config: Any, role: str) -> bool:
    return bool(pick(config, f"skip.{role}.enable", False))


def _dump_dir(config: Any, role: str) -> str:
    return str(pick(config, f"skip.{role}.dump_dir", "~/.verl/rollout_dump"))


def _wishes(own: Mapping[str, Any], environ: Mapping[str, str]) -> Wishes:
    unknown = sorted(set(own) - set(_OWN))
    if unknown:
        raise ConfigError(
            f"there is no option rolltape.verl.{unknown[0]}", hint=f"there are {', '.join(_OWN)}"
        )
    said = {name: environ.get(variable) or own.get(name) for name, variable in _OWN.items()}
    return Wishes(
        val=_flag(said["val"]),
        rewards=Rewards.parse(said["reward"] or "recorded"),
        groups=Groups.parse(said["groups"] or "refuse"),
    )


def _flag(said: Any) -> bool:
    value = str(said or "off").strip().lower()
    if value in ("1", "true", "yes", "on", "record"):
        return True
    if value in ("0", "false", "no", "off", "live"):
        return False
    raise ConfigError(f"{VAL} is {value!r}", hint="write true to record validation, false to leave it alone")
