"""What a scheduler needs for dump and mock: ROLL's mixin with ROLL's names, or one decorator."""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rolltape.errors import ConfigError, MismatchError, TapeNotFoundError
from rolltape.integrations.roll.estimate import expected
from rolltape.integrations.roll.explaining import TITLE, missing_tape
from rolltape.integrations.roll.mock import Inputs, RolloutMock, announce, current_run
from rolltape.integrations.roll.mock_config import field, fingerprint, stage_name, tape_options
from rolltape.policy import Mode
from rolltape.settings import resolve
from rolltape.storage import storage_at
from rolltape.tape import Tape
from rolltape.tape.manifest import read_manifest

log = logging.getLogger("rolltape.roll")

_MARK = "_rolltape_wrapped"
_TAPE, _MOCK = "_rolltape_tape", "_rolltape_mock"


class RolloutMockMixin:
    """Dump and mock for a scheduler that has ``config`` or ``pipeline_config``, and ``mode`` or ``is_val``.

    Replaces ROLL's mixin of the same name: call ``_init_rollout_mock()`` in ``__init__``, then
    either put ``@with_rollout_mock`` on ``get_batch`` or call the methods below from it.
    """

    mock_config: Any = None

    def _get_config(self) -> Any:
        """The pipeline's config."""
        return scheduler_config(self)

    def _get_mode_str(self) -> str:
        """``train`` or ``val``."""
        return scheduler_mode(self)

    def _get_mock_stage(self) -> str:
        """The stage for this scheduler's steps: ``rollout``, or one stage per domain."""
        return scheduler_stage(self)

    def _init_rollout_mock(self) -> None:
        """Open the tape, if the config asks for one, so that problems show now and not at a later step."""
        self.mock_config = field(scheduler_config(self), "rollout_mock")
        tape_of(self)

    def _should_load_mock(self, global_step: int) -> bool:
        """Whether this step comes from the tape."""
        mock = mock_of(self)
        return mock is not None and current_run() is None and mock.loads(global_step)

    def _should_dump_batch(self) -> bool:
        """Whether batches are dumped in this run."""
        mock = mock_of(self)
        return mock is not None and mock.saves()

    async def _maybe_dump_batch(self, batch: Any, global_step: int) -> None:
        """Dump a batch in dump mode."""
        run = current_run()
        if run is not None:
            run.noted = batch  # the decorator records it when get_batch returns
        elif self._should_dump_batch():
            await self._dump_batch(batch, global_step)

    async def _dump_batch(self, batch: Any, global_step: int) -> None:
        """Dump a batch."""

        async def given() -> Any:
            return batch

        await _required(self).get_async(global_step, None, given)

    async def _load_mock_batch(self, global_step: int) -> Any:
        """The recorded batch of a step; if there is none, raises ``FileNotFoundError``, which says why."""

        async def never() -> Any:
            raise ConfigError(f"{TITLE} this mode does not load step {global_step}", hint="set mode: mock")

        return await _required(self).get_async(global_step, None, never)


def with_rollout_mock(get_batch: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``get_batch``, sync or async, dump its result or load it, depending on the config.

    The step is its ``global_step``, or that of ``data.meta_info``. The request, ``batch_size`` and
    generation config, is recorded too, and compared in mock mode.
    """
    if getattr(get_batch, _MARK, False):
        return get_batch
    signature = inspect.signature(get_batch)

    @functools.wraps(get_batch)
    async def run_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        mock = mock_of(self)
        if mock is None:
            return await get_batch(self, *args, **kwargs)
        step, inputs = _asked_for(signature.bind(self, *args, **kwargs))
        return await mock.get_async(step, inputs, lambda: get_batch(self, *args, **kwargs))

    @functools.wraps(get_batch)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        mock = mock_of(self)
        if mock is None:
            return get_batch(self, *args, **kwargs)
        step, inputs = _asked_for(signature.bind(self, *args, **kwargs))
        return mock.get(step, inputs, lambda: get_batch(self, *args, **kwargs))

    wrapped = run_async if inspect.iscoroutinefunction(get_batch) else run
    setattr(wrapped, _MARK, True)
    return wrapped


def mock_of(scheduler: Any) -> RolloutMock | None:
    """The mock of a scheduler, created at its first step; None if the config asks for none."""
    if _MOCK not in vars(scheduler):
        tape = tape_of(scheduler)
        setattr(scheduler, _MOCK, None if tape is None else _mock(scheduler, tape))
    return vars(scheduler)[_MOCK]  # type: ignore[no-any-return]


def tape_of(scheduler: Any) -> Tape | None:
    """The tape of a scheduler, opened at the first call; None if the config asks for none."""
    if _TAPE not in vars(scheduler):
        config = scheduler_config(scheduler)
        options = tape_options(config)
        tape = None if options is None else _open_tape(options, fingerprint(config))
        tape = None if tape is None or tape.is_off else tape
        setattr(scheduler, _TAPE, tape)
        if tape is not None:
            announce(tape, scheduler_mode(scheduler))
    return vars(scheduler)[_TAPE]  # type: ignore[no-any-return]


def scheduler_config(scheduler: Any) -> Any:
    """The pipeline's config, under either name."""
    return getattr(scheduler, "config", None) or getattr(scheduler, "pipeline_config", None)


def scheduler_mode(scheduler: Any) -> str:
    """``train`` or ``val``, from ``mode`` or ``is_val``."""
    if hasattr(scheduler, "mode"):
        return str(scheduler.mode)
    if hasattr(scheduler, "is_val"):
        return "val" if scheduler.is_val else "train"
    raise AttributeError(f"{type(scheduler).__name__} must have an attribute `mode` or `is_val`")


def scheduler_stage(scheduler: Any) -> str:
    """The stage of a scheduler: its reward clusters, if any, are named after the domains it serves."""
    return stage_name(scheduler_config(scheduler), list(getattr(scheduler, "reward_clusters", None) or ()))


def _required(scheduler: Any) -> RolloutMock:
    mock = mock_of(scheduler)
    if mock is None:
        raise ConfigError(f"{TITLE} rollout_mock is not enabled", hint="set rollout_mock.enable: true")
    return mock


def _mock(scheduler: Any, tape: Tape) -> RolloutMock:
    """Created at the first step: ROLL's scheduler opens the tape before it knows its domains."""
    config, split = scheduler_config(scheduler), scheduler_mode(scheduler)
    stage = getattr(scheduler, "_get_mock_stage", lambda: scheduler_stage(scheduler))()
    mock = RolloutMock(tape, split, stage, expected(config, split, _share(config, stage, scheduler)))
    mock.look_ahead(field(config, "max_steps", 0))
    return mock


def _open_tape(options: dict[str, Any], parts: dict[str, Any]) -> Tape:
    settings = resolve({}, os.environ, options)
    parts = {**parts, **settings.fingerprint}
    compared = parts and settings.mode in (Mode.REPLAY, Mode.AUTO)
    manifest = read_manifest(storage_at(settings.dir or ".")) if compared else None
    if manifest is not None and not manifest.fingerprint:  # such as one imported from ROLL's dumps
        log.warning("%s the tape has no fingerprint; not compared: %s", TITLE, ", ".join(parts))
        parts = {}
    try:
        settings.refuse_prompts("a ROLL pipeline")
        return Tape(settings=replace(settings, fingerprint=parts))
    except TapeNotFoundError as error:
        raise missing_tape(error, str(error.where)) from None
    except MismatchError as error:
        if settings.mode is Mode.RECORD:
            error.hint = "dump to another rollout_mock.dump_dir, or remove this one: it has another run"
        raise


def _share(config: Any, stage: str, scheduler: Any) -> float:
    """The part of the batch that belongs to the domain of a scheduler."""
    domains = list(getattr(scheduler, "reward_clusters", None) or ())
    if stage == "rollout" or len(domains) != 1:
        return 1.0
    return float(field(config, "actor_train.data_args.domain_interleave_probs", {}).get(domains[0], 1.0))


def _asked_for(bound: inspect.BoundArguments) -> tuple[int, Inputs]:
    bound.apply_defaults()
    meta = getattr(bound.arguments.get("data"), "meta_info", None) or {}
    step = bound.arguments.get("global_step", meta.get("global_step"))
    if step is None:
        raise ConfigError(
            f"{TITLE} get_batch was called without a step",
            hint='pass global_step, or data with "global_step" in its meta_info',
        )
    inputs = {
        "batch_size": bound.arguments.get("batch_size"),
        "generation_config": meta.get("generation_config"),
    }
    return int(step), inputs
