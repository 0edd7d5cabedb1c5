"""The options of the server, read and checked. Opens nothing."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from rolltape.choices import NamedOption, parse_size
from rolltape.errors import ConfigError
from rolltape.policy import Mode, VersionRule
from rolltape.serving.asked import PLAIN, Naming
from rolltape.serving.order_gate import Order
from rolltape.settings import By
from rolltape.steps import as_step


class Spread(NamedOption):
    """Which of several upstream servers a call goes to."""

    ROUND_ROBIN = "round-robin"
    SESSION = "session"


class Engines(NamedOption):
    """Whether a replay has engines to speak to: then the control plane reaches them."""

    NONE = "none"
    ALIVE = "alive"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Every option of the server."""

    mode: Mode = Mode.AUTO
    upstream: tuple[str, ...] = ()
    """The servers that calls are passed on to."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one."""
    token: str | None = None
    """What a client has to know, where others than this machine can reach the server."""
    split: str = "train"
    step: int | None = None
    """The step to begin with. None: 0, and weight updates count it on until somebody says a step."""
    order: Order = Order.RECORDED
    wait: float = 30.0
    """Seconds after which a recorded call that nobody asks for is no longer waited for."""
    pace: float = 0.0
    """How much of the recorded time answers take: 0 none, 1 all, 0.25 at four times the speed."""
    spread: Spread = Spread.ROUND_ROBIN
    naming: Naming = PLAIN
    engines: Engines = Engines.NONE
    max_body: int = 64 * 10**6
    timeout: float | None = None
    """Seconds after which an upstream server that sends nothing is given up. None: never."""
    memory: int = 256 * 2**20
    """Bytes of recorded answers that are kept in memory."""
    by: By = By.STEP
    version: VersionRule = field(default_factory=lambda: VersionRule("same"))
    """With ``by="prompt"``: the versions of the policy whose samples may answer."""
    draw: int | None = None
    """With ``by="prompt"``: the seed that picks samples, where fewer are asked for than there are."""

    @property
    def asks_upstream(self) -> bool:
        """Whether calls may go to an engine."""
        return self.mode is not Mode.REPLAY

    @property
    def plays(self) -> bool:
        """Whether recordings answer."""
        return self.mode in (Mode.REPLAY, Mode.AUTO)


def read_options(
    *,
    mode: Any = "auto",
    upstream: str | Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    split: str = "train",
    step: int | None = None,
    order: Any = "recorded",
    wait: float = 30.0,
    pace: Any = "none",
    spread: Any = "round-robin",
    identity: Sequence[str] = (),
    volatile: Sequence[str] = (),
    engines: Any = "none",
    max_body: Any = 64 * 10**6,
    timeout: float | None = None,
    memory: Any = 256 * 2**20,
    by: Any = "step",
    version: str = "same",
    draw: int | None = None,
) -> ServeOptions:
    """Options as people write them. What contradicts itself is a ``ConfigError``."""
    hosts = (upstream,) if isinstance(upstream, str) else tuple(upstream)
    options = ServeOptions(
        mode=Mode.parse(mode),
        upstream=tuple(map(_address, hosts)),
        host=host,
        port=port,
        token=token,
        split=split,
        step=None if step is None else as_step(step),
        order=Order.parse(order),
        wait=_seconds("wait", wait),
        pace=parse_pace(pace),
        spread=Spread.parse(spread),
        naming=Naming(tuple(identity), frozenset(volatile)),
        engines=Engines.parse(engines),
        max_body=parse_size(max_body),
        timeout=None if timeout is None else _seconds("timeout", timeout),
        memory=parse_size(memory),
        by=By.parse(by),
        version=VersionRule.parse(version),
        draw=draw,
    )
    if options.by is By.STEP and (version != "same" or draw is not None):
        named = "version" if version != "same" else "draw"
        raise ConfigError(
            f"{named} says nothing of calls that are asked by their step", hint="add --by prompt"
        )
    if options.mode is Mode.OFF:
        raise ConfigError(
            "a server with the tape off would only be in the way", hint="mode: record or replay"
        )
    if options.mode in (Mode.RECORD, Mode.REWRITE) and not hosts:
        raise ConfigError(
            f"mode {options.mode} needs a server to pass calls on to",
            hint="--upstream http://localhost:8000, or --mode replay",
        )
    if options.engines is Engines.ALIVE and not hosts:
        raise ConfigError(
            "engines=alive needs to know where they are", hint="--upstream http://localhost:8000"
        )
    return options


def parse_pace(text: Any) -> float:
    """Which share of the recorded time answers take.

    >>> parse_pace("none"), parse_pace("real"), parse_pace("4x")
    (0.0, 1.0, 0.25)
    """
    word = str(text).strip().lower()
    if word in ("none", "real"):
        return 1.0 if word == "real" else 0.0
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)[x×]", word)
    if found is None or float(found[1]) == 0:
        raise ConfigError(f"{text!r} is no pace", hint="none, real, or how many times as fast: 4x")
    return 1.0 / float(found[1])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _seconds(name: str, value: float) -> float:
    if not 0 < value < 1e9:
        raise ConfigError(f"{name} must be a number of seconds above 0, not {value!r}")
    return float(value)


def _address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is not the address of a server", hint="write http://localhost:8000")
    return url.rstrip("/").removesuffix("/v1")
