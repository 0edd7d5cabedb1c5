"""Makes this process compute the same numbers every time, or says why it is too late for that.

Knows the switches: environment variables that NCCL, Transformer Engine and cuBLAS read when they start, and
the three of torch that ``DETERMINISTIC_MODE=1`` stands for. It does not set seeds.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rolltape.errors import ConfigError, TooLateError

__all__ = ["FLAGS", "WATCHED", "Conflict", "Determinism", "deterministic", "in_force"]

log = logging.getLogger("rolltape")

FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "NCCL_ALGO": "Ring",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "DETERMINISTIC_MODE": "1",
    }
)
"""What ``deterministic()`` sets, unless the user has set a value."""

WATCHED = (
    *FLAGS, "NCCL_PROTO", "PYTHONHASHSEED", "VLLM_BATCH_INVARIANT", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip
"""Variables that decide whether two runs can agree bit for bit; a tape records them."""

_READ_BY_CUDA = ("CUBLAS_WORKSPACE_CONFIG", "NVTE_ALLOW_NONDETERMINISTIC_ALGO")
_AS_GOOD = {"NCCL_ALGO": {"ring"}, "CUBLAS_WORKSPACE_CONFIG": {":4096:8", ":16:8"}}
_TORCH = {
    "torch.backends.cudnn.deterministic": "True",
    "torch.backends.cudnn.benchmark": "False",
    "torch.use_deterministic_algorithms": "True",
}


@dataclass(frozen=True, slots=True)
class Conflict:
    """A value that is kept because the user set it, although it differs from the one wanted."""

    name: str
    value: str
    """What is in force."""
    set_by: str
    """Where it comes from: ``environment`` or ``system_envs``."""
    instead_of: str
    """The value that ``deterministic()`` wants, or that the environment had."""

    def __str__(self) -> str:
        return f"{self.name} is {self.value!r}, set by {self.set_by}, instead of {self.instead_of!r}"


@dataclass(frozen=True, slots=True)
class Determinism:
    """What ``deterministic()`` found and left behind. As a context manager it puts back what it found."""

    before: Mapping[str, str]
    """Every switch as it was before; an empty text means that the variable was not set."""
    after: Mapping[str, str]
    """Every switch as it is now."""
    conflicts: tuple[Conflict, ...] = ()

    @property
    def changed(self) -> dict[str, tuple[str, str]]:
        """The switches that were changed, with their values before and after."""
        return {
            name: (self.before[name], now) for name, now in self.after.items() if self.before[name] != now
        }

    @property
    def holds(self) -> bool:
        """Whether everything that ``deterministic()`` asks for is in force."""
        switches = {**FLAGS, **{name: value for name, value in _TORCH.items() if name in self.after}}
        return all(_is(name, self.after[name], wanted) for name, wanted in switches.items())

    def __str__(self) -> str:
        lines = [f"{name}: {old or '(not set)'} -> {new}" for name, (old, new) in self.changed.items()]
        lines += [f"conflict: {conflict}" for conflict in self.conflicts]
        return "\n".join(lines) or "already deterministic; nothing was changed"

    def __enter__(self) -> Determinism:
        return self

    def __exit__(self, *error: object) -> None:
        for name in self.changed:
            if name not in _TORCH:
                _set_variable(name, self.before[name])
        if any(name in _TORCH for name in self.changed):
            _set_torch({name: self.before[name] == "True" for name in _TORCH})


def deterministic(system_envs: Mapping[str, object] | None = None) -> Determinism:
    """Make this process, and those it starts, deterministic. Call it before anything else.

    ``system_envs`` is the section of that name in a ROLL config; what it says about determinism is used and
    the rest is ignored. A value that the user set is kept, and reported if it prevents determinism. Raises
    ``TooLateError``, and changes nothing, if CUDA or NCCL has already started with other values.

    >>> with deterministic() as report:
    ...     report.after["NCCL_ALGO"]
    'Ring'
    """
    given = _given(system_envs or {})
    wanted = {name: given.get(name) or os.environ.get(name) or FLAGS[name] for name in FLAGS} | given
    late = [name for name, value in wanted.items() if os.environ.get(name, "") != value]
    _refuse_if_late({name: wanted[name] for name in late})
    found = {name: os.environ.get(name, "") for name in WATCHED}
    for name, value in wanted.items():
        _set_variable(name, value)
    # torch is loaded only now: it must not see the old values.
    torch = _torch() if wanted["DETERMINISTIC_MODE"] == "1" else sys.modules.get("torch")
    before = {**found, **_torch_switches(torch)}
    if torch is not None and wanted["DETERMINISTIC_MODE"] == "1":
        _set_torch({name: value == "True" for name, value in _TORCH.items()})
    report = Determinism(MappingProxyType(before), MappingProxyType(in_force()), _conflicts(given, found))
    for conflict in report.conflicts:
        log.warning("determinism: %s", conflict)
    return report


def in_force() -> dict[str, str]:
    """Every switch as it is now, by name; torch's only if torch is loaded. An empty text means: not set."""
    found = {name: os.environ.get(name, "") for name in WATCHED}
    if _unseeded:
        found["unseeded"] = ", ".join(sorted(_unseeded))
    return found | _torch_switches(sys.modules.get("torch"))


_unseeded: set[str] = set()


def note_unseeded(what: str) -> None:
    """Have tapes say from now on that a part of this run is random and no seed fixes it."""
    _unseeded.add(what)


def _given(system_envs: Mapping[str, object]) -> dict[str, str]:
    """What a config says about determinism, as text: YAML may have read ``1`` as a number."""
    given = {}
    for name, value in system_envs.items():
        if name not in WATCHED or value is None:
            continue
        if not isinstance(value, (str, int)):
            raise ConfigError(
                f"the value of an environment variable must be text or a whole number, not {value!r}",
                where=f"system_envs.{name}",
                hint=f"write {name}: '{FLAGS.get(name, '1')}'",
            )
        given[name] = str(int(value)) if isinstance(value, bool) else str(value)
    return given


def _conflicts(given: Mapping[str, str], found: Mapping[str, str]) -> tuple[Conflict, ...]:
    conflicts = []
    for name in {**FLAGS, **given}:
        if name in given and found[name] and not _is(name, found[name], given[name]):
            conflicts.append(Conflict(name, given[name], "system_envs", found[name]))
        ours = (given[name], "system_envs") if name in given else (found.get(name, ""), "environment")
        value, source = ours
        if value and name in FLAGS and not _is(name, value, FLAGS[name]):
            conflicts.append(Conflict(name, value, source, FLAGS[name]))
    return tuple(conflicts)


def _is(name: str, value: str, wanted: str) -> bool:
    as_good = _AS_GOOD.get(name, set())
    return value == wanted or (value.lower() in as_good and wanted.lower() in as_good)


def _refuse_if_late(changes: Mapping[str, str]) -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    started = []
    cuda = [name for name in _READ_BY_CUDA if name in changes]
    if cuda and torch.cuda.is_initialized():
        started.append(f"CUDA is initialised, and {' and '.join(cuda)} may have been read already")
    if "NCCL_ALGO" in changes and _nccl_is_up(torch):
        started.append("an NCCL process group is initialised, which has read NCCL_ALGO")
    if not started:
        return
    exports = " ".join(f"{name}={value}" for name, value in changes.items())
    raise TooLateError(
        "it is too late to make this process deterministic; nothing was changed",
        causes=started,
        hint="call rolltape.deterministic() before the first tensor goes to a device and before "
        f"torch.distributed starts, or start the program with: {exports}",
    )


def _nccl_is_up(torch: Any) -> bool:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return False
    return "nccl" in str(distributed.get_backend())


def _set_variable(name: str, value: str) -> None:
    if value:
        os.environ[name] = value
    else:
        os.environ.pop(name, None)


def _torch() -> Any:
    """Torch, if it is installed."""
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        return None
    return importlib.import_module("torch")


def _torch_switches(torch: Any) -> dict[str, str]:
    # A torch that is still being imported, or a stand-in for it, has no switches yet.
    if torch is None or not hasattr(torch, "are_deterministic_algorithms_enabled"):
        return {}
    cudnn = torch.backends.cudnn
    values = (cudnn.deterministic, cudnn.benchmark, torch.are_deterministic_algorithms_enabled())
    return dict(zip(_TORCH, map(str, values), strict=True))


def _set_torch(switches: Mapping[str, bool]) -> None:
    torch = sys.modules["torch"]
    deterministic, benchmark, algorithms = (switches[name] for name in _TORCH)
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = benchmark
    torch.use_deterministic_algorithms(algorithms)
