"""verl's ``RolloutSkip``, V1 and V2, on a tape: same construction, same calls, same configuration.

skip = RolloutSkip(config, worker_group)
skip.wrap_generate_sequences()
…
skip.record(new_batch, global_steps, gen_steps)     before each generation; restores new_batch on replay
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from rolltape.errors import NotATapeError
from rolltape.integrations.verl import prompts as rows
from rolltape.integrations.verl.config import fingerprint
from rolltape.integrations.verl.generate import find_prompts
from rolltape.integrations.verl.options import VAL, Wishes
from rolltape.integrations.verl.session import Position, Session, working_directory
from rolltape.integrations.verl.skip_config import SkipAction, SkipOptions, read_options
from rolltape.integrations.verl.wrappers import lookup, replace_generation
from rolltape.key import Key
from rolltape.reader.listing import is_tape
from rolltape.settings import resolve
from rolltape.storage import absolute, is_relative, placed, storage_at
from rolltape.tape import Tape

__all__ = ["RolloutSkip", "SkipAction", "read_dumped_data"]

log = logging.getLogger("rolltape")

_said: set[str] = set()


class RolloutSkip:
    """Generates once and replays afterwards. Does nothing unless the configuration enables it."""

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
        """Replace ``generate_sequences`` of the worker group, unless its trainer is on a tape already."""
        if not self.is_enable:
            return
        replace_generation(self._workers, self._generate, self._generate_async)

    def record(self, new_batch: Any, global_steps: int | None = None, gen_steps: int | None = None) -> None:
        """Set the batch and the step of the next generation.

        Several generations of one step are identified by their order, so that ``gen_steps`` may start over
        after a resume.
        """
        trainers_own = lookup("generation", "rollout")
        if trainers_own is not None:
            trainers_own.expect(new_batch)
            return
        self._new_batch = new_batch
        self._step = None if global_steps is None else int(global_steps)

    def close(self) -> None:
        """Write what is pending and close the tape."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _generate(self, live: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        turn = self._begin(find_prompts(args, kwargs))
        if turn is None:
            return live(*args, **kwargs)

        def rollout(prompts: Any, new_batch: Any) -> dict[str, Any]:
            return turn.keep(live(*args, **kwargs))

        return self._end(turn, turn.position.run(self._stage(rollout), *turn.inputs))

    async def _generate_async(self, live: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        turn = self._begin(find_prompts(args, kwargs))
        if turn is None:
            return await live(*args, **kwargs)

        async def rollout(prompts: Any, new_batch: Any) -> dict[str, Any]:
            return turn.keep(await live(*args, **kwargs))

        create_task = asyncio.get_running_loop().create_task
        return self._end(turn, await turn.position.run(create_task, self._stage(rollout)(*turn.inputs)))

    def _begin(self, batch: Any) -> _Turn | None:
        """The next generation; None if the tape does not act on it."""
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
        """The step given to ``record``, else the number of generations so far, without validation."""
        if self._step is not None:
            return self._step
        self._counted += not is_val
        return self._counted

    def _opened(self) -> Session:
        """The tape, opened at the first generation: then it is known whether the trainer calls ``record``.

        If it does, prompts that differ from the recorded ones are replaced, with a warning; else an error.
        """
        if self._session is None:
            match = {"inputs": "warn" if self._new_batch is not None else "error"}
            file = {
                "match": match,
                **{name: value for name, value in self.options.tape.items() if value is not None},
            }
            folder = os.environ.get("ROLLTAPE_DIR") or self.dump_dir
            arguments = {"dir": folder, "fingerprint": fingerprint(self._config)}
            settings = resolve(arguments, os.environ, file)
            settings.refuse_prompts("RolloutSkip")
            val = self.options.val or os.environ.get(VAL, "").lower() in ("1", "true", "yes", "on")
            self._session = Session.open(settings, "rollout.skip", Wishes(val=val))
        return self._session


class _Turn:
    """One generation: its prompts, and its output if it ran."""

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
        """Keep what the live function returned; return what to record."""
        self._ran.append(output)
        return {"gen_batch": rows.with_uids(output, self._batch), "new_batch": self._before}

    def result(self, recorded: dict[str, Any]) -> Any:
        """What the trainer gets: the live object after a live call, else the recording, with its batch."""
        if self._ran:
            return self._ran[0]
        if self._new_batch is not None and recorded["new_batch"] is not None:
            _become(self._new_batch, recorded["new_batch"])
        return rows.as_returned(recorded["gen_batch"])


def read_dumped_data(path: str | os.PathLike[str]) -> dict[Any, Any]:
    """What was recorded: ``{"gen_batch": DataProto, "new_batch": DataProto}``.

    For one recording (a ``.parquet`` file), or for every step of a tape, by step.
    """
    target = absolute(path)
    root, *inner = target.rsplit("/", 3)
    key = Key.parse("/".join(inner))
    if key is not None and storage_at(root).exists(key.path):
        with Tape(root, mode="replay") as tape:
            return _as_dumped(tape.recording(key.step, key.stage, key.split, key.call).value())
    if not is_tape(target):
        raise NotATapeError(
            "this is neither a tape nor a recording",
            where=target,
            causes=["it is a pickled dump of verl, which is never opened: a pickle can run any code"],
            hint=f"run: rolltape import {target} --to TAPE; then call read_dumped_data(TAPE)",
        )
    with Tape(target, mode="replay") as tape:
        return {found.key.step: _as_dumped(found.value()) for found in tape.recordings(stage="rollout")}


def _as_dumped(value: Any) -> dict[str, Any]:
    found = (
        value if isinstance(value, dict) and "gen_batch" in value else {"gen_batch": value, "new_batch": None}
    )
    return {**found, "gen_batch": rows.as_returned(found["gen_batch"])}


def _shell(batch: Any) -> Any:
    """Another ``DataProto`` with the same values, which the trainer may change."""
    return type(batch)(
        batch=None if batch.batch is None else batch.batch.clone(recurse=False),
        non_tensor_batch=dict(batch.non_tensor_batch),
        meta_info=dict(batch.meta_info),
    )


def _become(batch: Any, recorded: Any) -> None:
    batch.batch, batch.non_tensor_batch = recorded.batch, recorded.non_tensor_batch
    batch.meta_info = recorded.meta_info


def _resolved(folder: str) -> str:
    path = placed(folder, working_directory())
    if is_relative(folder):
        log.warning("dump_dir %s is a relative path; the tape is %s", folder, path)
    return path


def _say_once(keys: str | None) -> None:
    if keys is not None and keys not in _said:
        _said.add(keys)
        log.warning(
            "rollout.{%s} are old names, which still work; the new ones are rollout.skip.{enable, dump_dir}",
            keys,
        )
