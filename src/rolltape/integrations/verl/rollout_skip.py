"""verl's ``RolloutSkip``, V1 and V2, on a tape: same construction, same calls, same configuration.

skip = RolloutSkip(config, worker_group)
skip.wrap_generate_sequences()
…
skip.record(new_batch, global_steps, gen_steps)     before each generation; restores new_batch on replay
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
from pathlib import Path
from typing import Any

from rolltape.errors import NotATapeError
from rolltape.integrations.verl import prompts as rows
from rolltape.integrations.verl.config import fingerprint
from rolltape.integrations.verl.options import VAL, Wishes
from rolltape.integrations.verl.session import Position, Session, working_directory
from rolltape.integrations.verl.skip_config import SkipAction, SkipOptions, read_options
from rolltape.key import Key
from rolltape.settings import resolve
from rolltape.tape import Tape

__all__ = ["RolloutSkip", "SkipAction", "read_dumped_data"]

log = logging.getLogger("rolltape")

_said: set[str] = set()


class RolloutSkip:
    """Generates once and replays afterwards. Does nothing where the configuration does not enable it."""

    def __init__(self, config: Any, rollout_wg: Any) -> None:
        self.options: SkipOptions = read_options(config)
        self.is_enable = self.options.enable
        self._workers = rollout_wg
        self._config = config
        self._new_batch: Any = None
        self._step: int | None = None
        self._counted = 0
        self._session: Session | None = None
        if self.is_enable:
            _say_once(self.options.deprecated)
            self.dump_dir = _resolved(self.options.dump_dir)

    def wrap_generate_sequences(self) -> None:
        """Replace ``generate_sequences`` of the worker group."""
        if not self.is_enable:
            return
        live = self._workers.generate_sequences
        if not inspect.iscoroutinefunction(inspect.unwrap(live)):

            @functools.wraps(live)
            def generate_sequences(batch: Any, **kwargs: Any) -> Any:
                return self._generate(live, batch, kwargs)

            self._workers.generate_sequences = generate_sequences
            return

        @functools.wraps(live)
        async def generate_sequences_async(batch: Any, **kwargs: Any) -> Any:
            return await self._generate_async(live, batch, kwargs)

        is_awaited = inspect.iscoroutinefunction(live)  # else verl lets it be called with and without await
        self._workers.generate_sequences = (
            generate_sequences_async if is_awaited else _auto_await(generate_sequences_async)
        )

    def record(self, new_batch: Any, global_steps: int | None = None, gen_steps: int | None = None) -> None:
        """Say which batch and which step the next generation is for.

        Several generations of one step are told apart by their order, so that ``gen_steps`` may start over
        after a resume.
        """
        self._new_batch = new_batch
        self._step = None if global_steps is None else int(global_steps)

    def close(self) -> None:
        """Write what is pending and let go of the tape."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _generate(self, live: Any, batch: Any, kwargs: dict[str, Any]) -> Any:
        turn = self._begin(batch)
        if turn is None:
            return live(batch, **kwargs)

        def rollout(prompts: Any, new_batch: Any) -> dict[str, Any]:
            return turn.keep(live(batch, **kwargs))

        return self._end(turn, turn.position.run(self._stage(rollout), *turn.inputs))

    async def _generate_async(self, live: Any, batch: Any, kwargs: dict[str, Any]) -> Any:
        turn = self._begin(batch)
        if turn is None:
            return await live(batch, **kwargs)

        async def rollout(prompts: Any, new_batch: Any) -> dict[str, Any]:
            return turn.keep(await live(batch, **kwargs))

        create_task = asyncio.get_running_loop().create_task
        return self._end(turn, await turn.position.run(create_task, self._stage(rollout)(*turn.inputs)))

    def _begin(self, batch: Any) -> _Turn | None:
        """What the next generation is for; None if it is left alone."""
        is_val = bool((batch.meta_info or {}).get("validate", False))
        session = self._opened()
        if is_val and not session.wishes.val:
            return None
        new_batch, self._new_batch = (None, self._new_batch) if is_val else (self._new_batch, None)
        return _Turn(session.enter(self._next_step(is_val), "val" if is_val else "train"), batch, new_batch)

    def _stage(self, rollout: Any) -> Any:
        return self._opened().tape.stage("rollout", inputs=["prompts", "new_batch"])(rollout)

    def _end(self, turn: _Turn, recorded: dict[str, Any]) -> Any:
        self._opened().flush()
        return turn.result(recorded)

    def _next_step(self, is_val: bool) -> int:
        """The step that ``record`` named, else how many generations there were; validation counts none."""
        if self._step is not None:
            return self._step
        self._counted += not is_val
        return self._counted

    def _opened(self) -> Session:
        """The tape, opened at the first generation: now it is known whether the trainer hands over its batch.

        Where it does, other prompts than recorded are put right and only warned of; else they are an error.
        """
        if self._session is None:
            match = {"inputs": "warn" if self._new_batch is not None else "error"}
            file = {
                "match": match,
                **{name: value for name, value in self.options.tape.items() if value is not None},
            }
            arguments = {"dir": self.dump_dir, "fingerprint": fingerprint(self._config)}
            settings = resolve(arguments, os.environ, file)
            val = self.options.val or os.environ.get(VAL, "").lower() in ("1", "true", "yes", "on")
            self._session = Session.open(settings, "rollout.skip", Wishes(val=val))
        return self._session


class _Turn:
    """One generation: what it was asked for, and what it gave if it ran."""

    def __init__(self, position: Position, batch: Any, new_batch: Any) -> None:
        self.position = position
        self._batch = batch
        self._new_batch = new_batch
        self._before = None if new_batch is None else _shell(new_batch)
        self._ran: list[Any] = []

    @property
    def inputs(self) -> tuple[Any, Any]:
        """What is compared with the recording."""
        given = None if self._new_batch is None else rows.comparable(self._new_batch)
        return rows.comparable(self._batch), given

    def keep(self, output: Any) -> dict[str, Any]:
        """Remember what the live function returned; returns what is recorded."""
        self._ran.append(output)
        return {"gen_batch": rows.with_uids(output, self._batch), "new_batch": self._before}

    def result(self, recorded: dict[str, Any]) -> Any:
        """What the trainer gets: its own object after a live call, else the recording, with its batch."""
        if self._ran:
            return self._ran[0]
        if self._new_batch is not None and recorded["new_batch"] is not None:
            _become(self._new_batch, recorded["new_batch"])
        return rows.as_returned(recorded["gen_batch"])


def read_dumped_data(path: str | os.PathLike[str]) -> dict[Any, Any]:
    """What was recorded: ``{"gen_batch": DataProto, "new_batch": DataProto}``.

    Of one recording (a ``.parquet`` file), or by step for every step of a tape.
    """
    target = Path(path).expanduser().absolute()
    if target.is_file() and target.suffix == ".parquet":
        root = target.parents[2]
        key = Key.parse(target.relative_to(root).as_posix())
        if key is not None:
            with Tape(root, mode="replay") as tape:
                return _as_dumped(tape.recording(key.step, key.stage, key.split, key.call).value())
    if not (target / "tape.json").is_file():
        raise NotATapeError(
            "this is neither a tape nor a recording on one",
            where=target,
            causes=["it is a pickled dump of verl, which is not opened here: a pickle can run any code"],
            hint=f"rolltape import {target} --to TAPE, then read_dumped_data(TAPE)",
        )
    with Tape(target, mode="replay") as tape:
        return {found.key.step: _as_dumped(found.value()) for found in tape.recordings(stage="rollout")}


def _as_dumped(value: Any) -> dict[str, Any]:
    found = (
        value if isinstance(value, dict) and "gen_batch" in value else {"gen_batch": value, "new_batch": None}
    )
    return {**found, "gen_batch": rows.as_returned(found["gen_batch"])}


def _shell(batch: Any) -> Any:
    """Another ``DataProto`` of the same values, which the trainer may go on to change."""
    return type(batch)(
        batch=None if batch.batch is None else batch.batch.clone(recurse=False),
        non_tensor_batch=dict(batch.non_tensor_batch),
        meta_info=dict(batch.meta_info),
    )


def _become(batch: Any, recorded: Any) -> None:
    batch.batch, batch.non_tensor_batch = recorded.batch, recorded.non_tensor_batch
    batch.meta_info = recorded.meta_info


def _auto_await(function: Any) -> Any:
    from verl.utils.ray_utils import auto_await

    return auto_await(function)


def _resolved(folder: str) -> str:
    path = os.path.expanduser(folder)
    if not os.path.isabs(path):
        path = os.path.join(working_directory(), path)
        log.warning("dump_dir %s is relative; the tape is %s (resolved once, here)", folder, path)
    return path


def _say_once(keys: str | None) -> None:
    if keys is not None and keys not in _said:
        _said.add(keys)
        log.warning(
            "rollout.{%s} are old names, which work; the new ones are rollout.skip.{enable, dump_dir}",
            keys,
        )
