"""The environment of a command that replays a tape onto a second one, whatever framework it uses."""

from __future__ import annotations

from collections.abc import Mapping

from rolltape.integrations import ray_env, unedited


def replaying(environ: Mapping[str, str], tape: str, out: str) -> dict[str, str]:
    """The environment with the tape to replay and the one to write; other settings of tapes are left out.

    >>> found = replaying({"ROLLTAPE_STEPS": "0-9"}, "/runs/base", "/runs/new")
    >>> found["ROLLTAPE_MODE"], found["ROLLTAPE_OUT"], "ROLLTAPE_STEPS" in found
    ('replay', '/runs/new', False)
    """
    ours = {name for name in environ if name.startswith("ROLLTAPE_") and name != ray_env.BEFORE}
    found = {name: value for name, value in environ.items() if name not in ours}
    found |= {"ROLLTAPE_MODE": "replay", "ROLLTAPE_DIR": tape, "ROLLTAPE_OUT": out}
    ray_env.name_plugin(found)
    ray_env.hook_into(found, ray_env.ROLL_HOOK)
    unedited.reach(found)
    return found
