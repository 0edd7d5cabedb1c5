"""Generation through TransferQueue (verl's V1 trainer) where samples are asked for by their prompts.

A step draws its prompts as ever. When the trainer samples, each prompt is looked up: its recorded
trajectories go into the queue under the names of this run, and only those that are missing are submitted, a
prompt with as many sessions as it lacks. What was generated is recorded, one row for each trajectory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rolltape.cached import cached_property
from rolltape.errors import ConfigError, UnsupportedValueError
from rolltape.integrations.verl.config import pick
from rolltape.integrations.verl.options import Rewards
from rolltape.integrations.verl.prompts import columns_of, contents
from rolltape.integrations.verl.queue import Queue, score_again
from rolltape.integrations.verl.session import Session

_NUMBER = "__rollout_n__"
"""The column with which a prompt says how many sessions it gets, in place of ``rollout.n``."""
_STEPS = ("global_steps", "min_global_steps", "max_global_steps")
Row = tuple[int, int]
"""A prompt of a sample, by its place, and a session of it."""


class QueueByPrompt(Queue):
    """Runs sampling through a tape that is asked by prompts; trainers that submit ahead are refused."""

    def __init__(self, session: Session, config: Any) -> None:
        super().__init__(session, config)
        mode = pick(config, "trainer.v1.trainer_mode", "sync")
        others = {
            f"trainer.v1.trainer_mode is {mode}": mode != "sync",
            "algorithm.filter_groups is enabled": bool(pick(config, "algorithm.filter_groups.enable", False)),
        }
        if pick(config, "trainer.use_v1", True) and any(others.values()):
            raise ConfigError(
                f'with by="prompt" prompts are submitted when they are sampled, but '
                f"{next(name for name, is_so in others.items() if is_so)}",
                where=session.tape.dir,
                hint="use the mode sync without filtering, or leave by out",
            )
        self._n = int(pick(config, "actor_rollout_ref.rollout.n", 1))

    def plays(self, step: int, split: str = "train", samples: int | None = None) -> bool:
        """Never known before prompts are looked up."""
        return False

    def submit(self, trainer: Any) -> None:
        """Replaces ``_add_batch_to_generate``: draws prompts, and submits none before they are sampled."""
        self._trainer, self._prompts["train"] = trainer, trainer._next_train_batch()

    def validate(self, trainer: Any, live: Callable[..., Any]) -> Any:
        """Validation runs as without a tape."""
        if self.session.wishes.val:
            raise ConfigError(
                'validation cannot be recorded with by="prompt" in verl\'s V1 trainer',
                hint="leave ROLLTAPE_VERL_VAL unset",
            )
        return live(trainer)

    def sample(self, buffer: Any, live: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Replaces ``ReplayBuffer.sample``: the batch of this run's prompts, and metrics of the sampler."""
        names = ("global_steps", "partition_id", "batch_size")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if given.get("partition_id") != "train":
            return live(buffer, *args, **kwargs)
        position = self.session.enter(int(given["global_steps"]), "train")
        sampling = _Sampling(self, buffer, live, given, self._drawn(position.call, int(given["batch_size"])))
        found = position.run(self._stage, sampling.asked, sampling.rows, sampling)
        return sampling.played(found)

    @cached_property
    def _stage(self) -> Callable[..., Any]:
        """One, so that it knows what its calls were given."""

        def rollout(prompts: Sequence[Any], rows: list[Row], sampling: _Sampling) -> dict[str, Any]:
            return sampling.generate(rows)

        return self.session.by_prompts(rollout)

    def _drawn(self, call: int, size: int) -> Any:
        """The prompts of one sample of a step."""
        batch = self._prompts["train"]
        if (call + 1) * size > len(batch):
            raise ConfigError(
                f"a sample of {size} prompts is asked for where a step has drawn {len(batch)}",
                hint='leave by="prompt" out: this trainer samples what other steps submitted',
            )
        return picked(batch, list(range(call * size, (call + 1) * size)))


class _Sampling:
    """One sample of the trainer: its prompts, what was generated of it, and how it goes into the queue."""

    def __init__(
        self, queue: QueueByPrompt, buffer: Any, live: Callable[..., Any], given: dict[str, Any], batch: Any
    ) -> None:
        self._queue, self._buffer, self._live, self._given = queue, buffer, live, given
        self._batch = batch
        self._columns = columns_of(batch)
        self._uids = [str(uid) for uid in batch["uid"]]
        self._sampled: tuple[Any, dict[str, Any]] | None = None
        self._metrics: dict[str, Any] = {}
        prompts = contents(len(batch), None, self._columns)
        self.asked = [prompt for prompt in prompts for _ in range(queue._n)]
        """The prompt of every trajectory."""
        self.rows: list[Row] = [(at, session) for at in range(len(batch)) for session in range(queue._n)]
        """Which it is."""

    def generate(self, rows: list[Row]) -> dict[str, Any]:
        """What is missing, generated in one go: one row for each trajectory, in the order of ``rows``."""
        import transfer_queue as tq

        places = sorted({place for place, _ in rows})
        counts = [sum(one == place for one, _ in rows) for place in places]
        part = picked(self._batch, places)
        if set(counts) != {self._queue._n}:
            part = _with_numbers(part, counts)
        self._queue._trainer._submit_batch_to_rollout(part)
        batch, metrics = self._live(self._buffer, **{**self._given, "batch_size": len(places)})
        self._metrics = dict(metrics)
        wanted = []
        seen = dict.fromkeys(places, 0)
        for place, _ in rows:
            wanted.append(f"{self._uids[place]}_{seen[place]}_0")
            seen[place] += 1
        lacking = sorted(set(wanted) - set(batch.keys))
        if lacking or len(batch.keys) != len(wanted):
            surplus = sorted(set(batch.keys) - set(wanted))
            raise UnsupportedValueError(
                f"{len(wanted)} trajectories were asked for, and {len(batch.keys)} came: "
                f"{', '.join((lacking or surplus)[:3])}",
                causes=["a prompt failed", "a conversation has several outputs", "verl drew other prompts"],
                hint='each trajectory must have one output for by="prompt"; else leave it out',
            )
        at = [list(batch.keys).index(key) for key in wanted]
        fields = tq.kv_batch_get(keys=list(batch.keys), partition_id=batch.partition_id)
        if rows == self.rows:
            self._sampled = batch, metrics
        else:
            tq.kv_clear(keys=list(batch.keys), partition_id=batch.partition_id)
        return {
            "batch": tq.KVBatchMeta(
                partition_id=batch.partition_id, keys=wanted, tags=[dict(batch.tags[row]) for row in at]
            ),
            "fields": picked(fields, at), "metrics": dict(metrics), "asked": len(places), "refilled": 0,
            "uids": None,
        }  # fmt: skip

    def played(self, found: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """What the trainer gets: what verl sampled where all of it was generated, else put into the queue."""
        import transfer_queue as tq
        from tensordict import NonTensorStack

        if self._sampled is not None:
            return self._sampled
        fields, step = found["fields"], int(self._given["global_steps"])
        for name, column in self._columns.items():
            if name in fields.keys() and name != "uid" and not hasattr(column[0], "dtype"):  # noqa: SIM118
                fields[name] = NonTensorStack(*[column[place] for place, _ in self.rows])
        if "uid" in fields.keys():  # noqa: SIM118  (a TensorDict iterates over rows)
            fields["uid"] = NonTensorStack(*[self._uids[place] for place, _ in self.rows])
        keys = [f"{self._uids[place]}_{session}_0" for place, session in self.rows]
        tags = [
            {**tag, **{name: step for name in _STEPS if name in tag}} for tag in found["batch"].tags
        ]  # they count as fresh: which may answer, the tape's options say
        if self._queue.session.wishes.rewards is Rewards.RECOMPUTE:
            fields = score_again(self._queue._trainer, keys, fields)
        tq.kv_batch_put(keys=keys, partition_id="train", fields=fields, tags=tags)
        return tq.KVBatchMeta(partition_id="train", keys=keys, tags=tags), self._metrics


def picked(batch: Any, rows: list[int]) -> Any:
    """Some rows of a TensorDict, with what it has for all of them."""
    from verl.utils.tensordict_utils import index_select_tensor_dict

    return index_select_tensor_dict(batch, rows)


def _with_numbers(batch: Any, counts: list[int]) -> Any:
    from tensordict import NonTensorStack

    batch[_NUMBER] = NonTensorStack(*counts)
    return batch
