"""Named tensors from inside a step, recorded to be compared: one by one, or by pattern on a torch module.

A probe is a stage that is recorded and never replayed, so a replay writes it to the second tape, where
``rolltape diff`` finds it. What a probe takes is detached and copied; nothing of the step changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from rolltape.batch.arrays import import_torch
from rolltape.batch.json_values import is_tensor
from rolltape.errors import ConfigError
from rolltape.hooks import hook
from rolltape.policy import Mode
from rolltape.tape.scope import current, no_step
from rolltape.tape.stage import Stage, wrap

if TYPE_CHECKING:
    from rolltape.tape.tape import Tape

PREFIX = "probe."
"""Begins the name of every stage that is a probe."""
LOGPROBS = "logprobs"
"""The probe by which ``rolltape trust`` knows the trainer's log-probs."""
KINDS = ("forward", "backward", "grad")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How much of what could be probed is."""

    every: int = 1
    """Only steps that it divides are probed."""
    most: int | None = None
    """Of the elements, so many at most, evenly spaced: the same ones in every run."""

    def __post_init__(self) -> None:
        if self.every < 1 or (self.most is not None and self.most < 1):
            raise ConfigError(
                f"every={self.every}, most={self.most}: both are whole numbers from 1 on",
                hint="every=10 probes each tenth step, most=4096 keeps so many elements",
            )

    def taken(self, value: Any) -> Any:
        """The part of an array or tensor that is kept: as it is, or a flat list of evenly spaced elements."""
        if is_tensor(value):
            value = value.detach()
        count = value.numel() if is_tensor(value) else value.size
        if self.most is None or count <= self.most:
            return value
        return value.reshape(-1)[:: -(-count // self.most)]


@dataclass(slots=True)
class Watch:
    """The hooks on a module; closing it takes them off."""

    names: list[str]
    """The submodules and parameters that are probed."""
    _handles: list[Any] = field(default_factory=list)
    _context: Context | None = None
    """That of the last forward pass: gradients of devices are computed on threads that know no step."""

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def probe(tape: Tape, name: str, value: Any, uid: Sequence[Any] | None, sampling: Sampling) -> None:
    """Record one tensor under a name; in a replay, log-probs are measured too."""
    replays = tape.settings.mode in (Mode.REPLAY, Mode.AUTO)
    measured = name == LOGPROBS and replays and sampling.most is None
    if tape.is_off or (tape.settings.mode is Mode.REPLAY and tape.out is None and not measured):
        return
    scope = current(tape._number)
    if scope is None:
        raise no_step(f"tape.probe({name!r})")
    if scope.step % sampling.every:
        return
    if measured:
        hook("logprobs")(tape, scope.step, scope.split, value, uid)
    if tape.settings.mode is Mode.REPLAY and tape.out is None:
        return
    taken = sampling.taken(value)
    whole = uid is not None and getattr(taken, "shape", None) == getattr(value, "shape", None)
    result = {"uid": [str(one) for one in uid or ()], "value": taken} if whole else {"value": taken}
    wrap(tape, Stage(PREFIX + name, lambda: result, replay=False))()


def watch(tape: Tape, module: Any, pattern: str, of: Sequence[str], sampling: Sampling) -> Watch:
    """Hook every submodule whose name fits; in mode off none."""
    torch = import_torch()
    unknown = set(of) - set(KINDS)
    if unknown or isinstance(of, str) or not isinstance(module, torch.nn.Module):
        raise ConfigError(
            f"watch takes a torch module and of= some of {', '.join(KINDS)}, not {of!r}",
            hint='tape.watch(model, "layers.*.mlp", of=["forward", "grad"])',
        )
    found = Watch([])
    if tape.is_off:
        return found
    found._handles.append(module.register_forward_pre_hook(lambda *_: _remember(found)))
    for name, inner in module.named_modules():
        if not fnmatchcase(name, pattern):
            continue
        for kind in [kind for kind in ("forward", "backward") if kind in of]:
            hook = _on_forward if kind == "forward" else _on_backward
            found._handles.append(
                inner.register_forward_hook(hook(tape, found, f"{name or 'model'}.{kind}", sampling))
            )
            found.names.append(f"{name or 'model'}.{kind}")
    if "grad" in of:
        for name, parameter in module.named_parameters():
            owner = name.rpartition(".")[0]
            if parameter.requires_grad and (fnmatchcase(name, pattern) or fnmatchcase(owner, pattern)):
                hook = parameter.register_post_accumulate_grad_hook(
                    _on_gradient(tape, found, f"{name}.grad", sampling)
                )
                found._handles.append(hook)
                found.names.append(f"{name}.grad")
    if not found.names:
        names = [name for name, _ in module.named_modules() if name][:8]
        raise ConfigError(f"no submodule fits {pattern!r}", hint=f"there are: {', '.join(names)}, …")
    return found


def _remember(watching: Watch) -> None:
    watching._context = copy_context()


def _on_forward(tape: Tape, watching: Watch, name: str, sampling: Sampling) -> Callable[..., None]:
    def hook(module: Any, inputs: Any, outputs: Any) -> None:
        for at, tensor in enumerate(_tensors(outputs)):
            _in_step(tape, watching, f"{name}.{at}" if at else name, tensor, sampling)

    return hook


def _on_backward(tape: Tape, watching: Watch, name: str, sampling: Sampling) -> Callable[..., None]:
    # Hooks on the outputs, not on the module: those of the module forbid what works in place behind it.
    def hook(module: Any, inputs: Any, outputs: Any) -> None:
        for at, tensor in enumerate(_tensors(outputs)):
            if tensor.requires_grad:
                tensor.register_hook(
                    partial(_gradient, tape, watching, f"{name}.{at}" if at else name, sampling)
                )

    return hook


def _gradient(tape: Tape, watching: Watch, name: str, sampling: Sampling, gradient: Any) -> None:
    if watching._handles:  # not closed meanwhile
        _in_step(tape, watching, name, gradient, sampling)


def _on_gradient(tape: Tape, watching: Watch, name: str, sampling: Sampling) -> Callable[[Any], None]:
    def hook(parameter: Any) -> None:
        if parameter.grad is not None:
            _in_step(tape, watching, name, parameter.grad, sampling)

    return hook


def _in_step(tape: Tape, watching: Watch, name: str, tensor: Any, sampling: Sampling) -> None:
    """Probe in the step of this code, else in that of the forward pass, unless that is over."""
    if current(tape._number) is not None:
        probe(tape, name, tensor, None, sampling)
    elif watching._context is not None:
        watching._context.copy().run(_if_in_step, tape, name, tensor, sampling)


def _if_in_step(tape: Tape, name: str, tensor: Any, sampling: Sampling) -> None:
    scope = current(tape._number)
    if scope is not None and scope.open:
        probe(tape, name, tensor, None, sampling)


def _tensors(value: Any) -> list[Any]:
    """The tensors of what a module returned: a tensor, a tuple, a mapping, or an output object of those."""
    if is_tensor(value):
        return [value]
    if isinstance(value, dict):
        return [tensor for inner in value.values() for tensor in _tensors(inner)]
    if isinstance(value, (tuple, list)):
        return [tensor for inner in value for tensor in _tensors(inner)]
    return []
