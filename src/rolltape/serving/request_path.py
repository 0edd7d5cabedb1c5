"""Where a request goes: the path of the API, and what a client put in front of it to say who it is.

    /r/iter/3/traj-7/v1/chat/completions      session iter/3/traj-7
    /r/step/4/traj-7/v1/chat/completions      session traj-7, step 4
    /sessions/task:0/v1/chat/completions      session task:0
    /ng-rollout/12-3/v1/responses             session 12-3
    /ng-rollout/12-3/training-token-capture/v1/responses    session 12-3/training-token-capture

Headers get lost on the way through other proxies; a path does not. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from rolltape.serving.control import is_control
from rolltape.serving.dialects import find

_PREFIXES = ("r", "sessions", "ng-rollout")
"""First segments of a path with an identity, which is all up to the path of the API."""

_STEP = re.compile(r"(?:^|/)step/([0-9]{1,18})(?=/|$)")


@dataclass(frozen=True, slots=True)
class Place:
    """A path, taken apart."""

    path: str
    """The path of the API, as its server knows it."""
    session: str | None = None
    """Who asks, where the path says it."""
    step: int | None = None
    """The step, where the path says it."""
    lost: bool = False
    """Whether there is an identity, and nothing behind it that an API has."""


def locate(path: str) -> Place:
    """Take a path apart.

    >>> locate("/r/step/4/traj-7/v1/chat/completions")
    Place(path='/v1/chat/completions', session='traj-7', step=4, lost=False)
    >>> locate("/v1/models").session is None
    True
    """
    parts = path.split("/")[1:]
    if not parts or parts[0] not in _PREFIXES or len(parts) < 2:
        return Place(path)
    for at in range(1, len(parts)):
        rest = "/" + "/".join(parts[1 + at :])
        if is_known(rest):
            return _identified("/".join(parts[1 : 1 + at]), rest)
    return Place(path, lost=True)


def is_known(path: str) -> bool:
    """Whether an inference server is known to have this path."""
    return find("POST", path) is not None or is_control(path) or path.startswith(("/v1/", "/inference/v1/"))


def _identified(prefix: str, rest: str) -> Place:
    found = _STEP.search("/" + prefix)
    step = int(found[1]) if found else None
    session = _STEP.sub("", "/" + prefix, count=1).strip("/") if found else prefix
    return Place(rest, unquote(session) or None, step)
