"""Which tape a verl run uses, and how: pure decisions based on its configuration and the environment.

Precedence as everywhere: environment > configuration > default. What ``skip.*`` becomes:

    action: cache     mode auto, missing steps are recorded
    action: repeat    mode auto, missing steps play the nearest recorded one

What ``actor_rollout_ref.rollout.skip`` and ``skip_rollout`` of verl 0.6 to 0.8 become: skip_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rolltape.choices import NamedOption
from rolltape.errors import ConfigError
from rolltape.integrations.verl.config import ROLES, TAPE_PREFIX, Run, fingerprint, pick, plain, unseeded
from rolltape.integrations.verl.skip_config import names_a_tape, read_options
from rolltape.policy import Mode
from rolltape.settings import By, Settings, resolve
from rolltape.storage import is_relative, joined, placed

SWITCH = "ROLLTAPE_VERL"
VAL = "ROLLTAPE_VERL_VAL"
REWARD = "ROLLTAPE_VERL_REWARD"
GROUPS = "ROLLTAPE_VERL_GROUPS"
LOGPROBS = "ROLLTAPE_VERL_LOGPROBS"
_OWN = {"val": VAL, "reward": REWARD, "groups": GROUPS, "logprobs": LOGPROBS}
"""Extra options of this integration, under ``rolltape.verl``."""


class Rewards(NamedOption):
    """Where the rewards of replayed responses come from."""

    RECORDED = "recorded"
    RECOMPUTE = "recompute"


class Groups(NamedOption):
    """What happens if a recorded batch does not have as many prompts as the trainer asks for (V1)."""

    REFUSE = "refuse"
    CYCLE = "cycle"
    """The recorded groups are repeated in order, or only the first ones are used."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """The extra options of this integration."""

    val: bool = False
    """Whether validation is recorded too, under the split ``val``."""
    rewards: Rewards = Rewards.RECORDED
    groups: Groups = Groups.REFUSE
    logprobs: bool = False
    """Whether the trainer's log-probs are recorded too, as the stage ``old_log_prob``."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one role of a run uses a tape."""

    role: str
    """One of ``ROLES``, or ``*`` for all of them."""
    settings: Settings
    wishes: Wishes
    origin: str
    """The option that led here, for messages."""
    relative_to: str | None = None
    """The directory that a relative path was resolved against; None if it was absolute."""
    unseeded: tuple[str, ...] = ()
    """The switches that are off and without which part of the weights begins at random."""
    old_dump: str | None = None
    """A file outside the tape that may hold a dump of verl's own."""


def opted_in(config: Any, environ: Mapping[str, str]) -> bool:
    """Whether the user asked for tapes: in the environment, by a ``tape:`` directory, or ``rolltape``."""
    switch = environ.get(SWITCH, "").strip().lower()
    if switch in ("0", "false", "no", "off"):
        return False
    if switch or _env_names_a_tape(environ):
        return True
    if pick(config, "rolltape") is not None:
        return True
    return names_a_tape(config) or any(
        _dump_dir(config, role).startswith(TAPE_PREFIX) and _enabled(config, role) for role in ROLES
    )


def plans(config: Any, environ: Mapping[str, str], cwd: str) -> list[Plan]:
    """The plan of each role; one for all (``*``) if the environment or ``rolltape`` names the tape."""
    off = tuple(unseeded(config))
    return [replace(plan, unseeded=off) for plan in _plans(config, environ, cwd)]


def _plans(config: Any, environ: Mapping[str, str], cwd: str) -> list[Plan]:
    section = dict(plain(pick(config, "rolltape")) or {})
    own = dict(section.pop("verl", None) or {})
    old = read_options(config)
    wishes = _wishes({"val": old.val, **own} if old.enable else own, environ)
    parts = fingerprint(config) | dict(section.pop("fingerprint", None) or {})
    if _env_names_a_tape(environ) or section.get("dir"):
        given = [_from_skip(config, role) for role in ROLES if _enabled(config, role)]
        chosen = next(iter(given), old.tape if old.enable else {})
        file = {**chosen, **section}
        origin = "ROLLTAPE_DIR" if environ.get("ROLLTAPE_DIR") else "rolltape.dir"
        return [_plan("*", file, environ, cwd, parts, origin, wishes)]
    found = []
    for role in ROLES:
        if _enabled(config, role):
            folder = joined(_dump_dir(config, role).removeprefix(TAPE_PREFIX), Run.of(config).folder)
            file = {**_from_skip(config, role), **section, "dir": folder}
            found.append(_plan(role, file, environ, cwd, parts, f"skip.{role}.dump_dir", wishes))
    if old.enable:
        file = {**old.tape, **section, "dir": old.dump_dir}
        found.append(
            replace(_plan("rollout", file, environ, cwd, parts, old.key, wishes), old_dump=old.old_dump)
        )
    return [plan for plan in found if plan.settings.mode is not Mode.OFF]


def _plan(
    role: str, file: dict[str, Any], environ: Mapping[str, str], cwd: str, parts: dict[str, Any], origin: str,
    wishes: Wishes,
) -> Plan:  # fmt: skip
    before = resolve({}, environ, file)
    if before.mode is Mode.OFF or before.dir is None:
        return Plan(role, before, wishes, origin)
    relative = cwd if is_relative(before.dir) else None
    arguments = {"dir": placed(before.dir, cwd), "fingerprint": parts | dict(before.fingerprint)}
    match = {part: str(level) for part, level in before.match.items()}
    if wishes.groups is Groups.CYCLE and "data" in arguments["fingerprint"]:
        match.setdefault("data", "warn")  # it includes sizes, and another size was asked for
    if before.by is By.PROMPT:
        match = _by_prompt(match)
    if wishes.rewards is Rewards.RECOMPUTE and "reward" in arguments["fingerprint"]:
        match["reward"] = "ignore"
    arguments["match"] = match
    return Plan(role, resolve(arguments, environ, file), wishes, origin, relative)


def _by_prompt(match: dict[str, str]) -> dict[str, str]:
    """What is compared where samples are asked for by their prompts: all but what may then be different.

    How samples are drawn is no argument of verl's generation, so the fingerprint alone tells it.
    """
    loose = [part for part in ("sampling", "model") if match.get(part, "error") != "error"]
    if loose:
        raise ConfigError(
            f'with by="prompt" the part {loose[0]} must match: samples are looked up by their prompts alone',
            where="match",
            hint=f"leave {loose[0]} out of match, and use another tape for another {loose[0]}",
        )
    return {"data": "ignore", "seed": "ignore", "sampling.n": "ignore", **match}


def _from_skip(config: Any, role: str) -> dict[str, Any]:
    action = str(pick(config, f"skip.{role}.action", "cache"))
    steps = list(pick(config, f"skip.{role}.steps", []))
    if action not in ("cache", "repeat"):
        raise ConfigError(
            f"skip.{role}.action is {action!r}, which a tape does not support", hint="use cache or repeat"
        )
    # `cache` sets no on_miss: mode `auto` records by default, and a replay must not start to record.
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
            f"unknown option rolltape.verl.{unknown[0]}", hint=f"the options are {', '.join(_OWN)}"
        )
    said = {name: environ.get(variable) or own.get(name) for name, variable in _OWN.items()}
    return Wishes(
        val=_flag(said["val"], VAL, "validation"),
        rewards=Rewards.parse(said["reward"] or "recorded"),
        groups=Groups.parse(said["groups"] or "refuse"),
        logprobs=_flag(said["logprobs"], LOGPROBS, "the trainer's log-probs"),
    )


def _flag(said: Any, name: str, what: str) -> bool:
    value = str(said or "off").strip().lower()
    if value in ("1", "true", "yes", "on", "record"):
        return True
    if value in ("0", "false", "no", "off", "live"):
        return False
    raise ConfigError(f"{name} must be true or false, not {value!r}", hint=f"true records {what} too")
