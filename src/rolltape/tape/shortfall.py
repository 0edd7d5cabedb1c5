"""Whether a replay makes all the calls that were recorded of a step. Fewer are another run: a smaller batch,
where calls are prompts, or a loop that now generates less often.

One call more than was recorded is missing on the tape, which ``policy`` deals with; one less only shows when
the step is over. That is at the end of the block for the calls made in it, and for calls with a key, which
have a block each, at the first call that the recorded run made after them, or when the tape is closed.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from rolltape.codec.header import About
from rolltape.errors import KeyNameError, RolltapeError
from rolltape.fingerprint import Part
from rolltape.key import Key
from rolltape.policy import Action
from rolltape.settings import MatchLevel, Settings
from rolltape.storage import Storage
from rolltape.tape.blocks import Blocks
from rolltape.tape.opening import report
from rolltape.tape.player import Played, Player
from rolltape.tape.recorder import Recorder
from rolltape.tape.recording import Recording
from rolltape.tape.scope import Scope
from rolltape.tape.stage import Call
from rolltape.tape.step_index import recordings

log = logging.getLogger("rolltape")

PART = "calls"
"""What ``match`` calls it."""

Place: TypeAlias = "tuple[str, str, int, bool]"
"""Split, stage, step, and whether the calls have keys: those with numbers are told apart."""

_MOST_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A step of which only some of the recorded calls were made.

    >>> keys = [Key(step=3, call=call) for call in ("a", "b", "c")]
    >>> print(Shortfall(tuple(keys[1:]), made=1))
    train/rollout: of the 3 calls recorded at step 3, this run made 1; it never made 'b', 'c'
    """

    missing: tuple[Key, ...]
    """The recordings that nobody asked for; at least one."""
    made: int
    """How many were asked for."""

    @property
    def place(self) -> Place:
        """Where it is."""
        return _place(self.missing[0])

    @property
    def recorded(self) -> int:
        """How many calls were recorded."""
        return self.made + len(self.missing)

    @property
    def never_made(self) -> str:
        """The calls that were not made, for people."""
        more = f", … ({len(self.missing)} calls)" if len(self.missing) > _MOST_SHOWN else ""
        return ", ".join(repr(key.call) for key in self.missing[:_MOST_SHOWN]) + more

    def __str__(self) -> str:
        split, stage, step, _ = self.place
        return (
            f"{split}/{stage}: of the {self.recorded} calls recorded at step {step}, "
            f"this run made {self.made}; it never made {self.never_made}"
        )

    def refuse(self, where: str, more: int = 0) -> None:
        """Raise ``MismatchError``; ``more`` steps are like this one."""
        split, stage, step, keyed = self.place
        causes = ["fewer prompts, or a smaller batch, than when it was recorded"]
        if not keyed:
            causes.append("a loop that calls until it has enough, as DAPO does, has enough sooner now")
        report(
            [
                Part(
                    PART, False, MatchLevel.ERROR,
                    f"{self.recorded} of stage {stage!r} at step {step} of {split!r}",
                    f"{self.made}: never {self.never_made}{_others(more)}",
                )
            ],
            f"{where}/{self.missing[0].path}",
            causes,
        )  # fmt: skip


class CallsMade:
    """Counts the calls that a replay makes, and refuses a step that is over and has too few."""

    def __init__(
        self, storage: Storage, settings: Settings, blocks: Blocks, player: Player, recorder: Recorder
    ) -> None:
        self._storage = storage
        self._level = settings.match.get(PART, MatchLevel.ERROR)
        self._shard = settings.rank, settings.world_size
        self._steps = settings.steps
        self._blocks = blocks
        self._player = player
        self._recorder = recorder
        self._pending: dict[Place, set[int | str]] = {}
        """The calls with keys that were made of steps which are not known to be over; of one thread only."""
        self._not_before: dict[Place, int] = {}
        """Until which turn of the recorded run a pending step may still get calls."""
        self._said: set[Place] = set()
        self.alone = True
        """Whether no other process uses this very tape for a part of the same run, as far as it is known."""
        self._counts: dict[tuple[str, str], Counter[int]] = {}
        """How many calls with keys each step has on the tape, by split and stage."""

    def note(self, call: Call, played: Played) -> None:
        """A call was given its own recording. Refuses a step that the recorded run had finished by then."""
        if call.decision.action is not Action.REPLAY or self._level is not MatchLevel.ERROR:
            return
        if not self._blocks.in_sequence:
            self._pending.clear()  # others may still make the rest: it shows when the tape is closed
            return
        key, turn = played.key, played.about.turn
        if isinstance(key.call, str):
            self._pending.setdefault(_place(key), set()).add(key.call)
        if turn is None:
            return
        for place in list(self._pending):
            is_other = place[0] == key.split and place[2] != key.step
            if is_other and self._not_before.get(place, -1) < turn:
                self._settle(place, turn, played.about.writer)

    def end_block(self, scope: Scope) -> None:
        """A block ended well. Refuses it if the recorded one made more calls of a stage that it called."""
        if self._level is not MatchLevel.ERROR:
            return
        for stage, number in scope.replayed.items():
            missing: list[Key] = []
            while (after := self._key(scope, stage, number + len(missing))) is not None:
                if not self._recorder.step_index.has_further(after) or after in self._recorder.recorded:
                    break
                missing.append(after)
            if missing and not any(about is None or about.outlived for about in map(self._about, missing)):
                Shortfall(tuple(missing), number).refuse(self._storage.location)

    def at_close(self, never_played: Iterable[str]) -> None:
        """Refuse what is short of the steps that are over; warn of the others that are."""
        if self._level is MatchLevel.IGNORE:
            return
        found = self._found(never_played)
        complete = self._complete(found)
        refused: list[tuple[Shortfall, int]] = []
        for each in _by_stage(found):
            over = next((one for one in each if self.alone and self._is_over(one, complete)), None)
            is_error = self._level is MatchLevel.ERROR and over is not None and self._has_one_writer(over)
            if over is not None and is_error:
                refused.append((over, len(each) - 1))
            else:
                log.warning("tape %s: %s%s", self._storage.location, each[0], _others(len(each) - 1))
        for one, more in refused:
            one.refuse(self._storage.location, more)

    def _settle(self, place: Place, turn: int, writer: str | None) -> None:
        """Refuse a step if calls are missing which the recorded run made before ``turn``."""
        split, stage, step, _ = place
        made = len(self._pending.get(place, ()))
        if self._blocks.is_cut_off(split, step) or made >= self._counted(split, stage)[step]:
            self._pending.pop(place, None)
            return
        turns: dict[Key, int | None] = {}
        shared = not self.alone
        for key in self._recorded(place):
            about = self._about(key)
            shared = shared or about is None or about.writer != writer
            if not self._is_known(key):
                turns[key] = None if about is None else about.turn
        if shared:  # other processes may make the rest
            self._pending.pop(place, None)
            return
        overdue = tuple(key for key, at in turns.items() if at is not None and at < turn)
        if overdue and self._blocks.in_sequence:
            self._pending.pop(place, None)
            self._said.add(place)
            Shortfall(overdue, made).refuse(self._storage.location)
        # They come later, or nobody knows when.
        self._not_before[place] = min((2**63 if at is None else at for at in turns.values()), default=2**63)

    def _found(self, never_played: Iterable[str]) -> list[Shortfall]:
        """What was left of steps that this run took part in and that did not break off."""
        made = Counter(map(_place, self._player.asked()))
        begun = {_stem(Key(split=split, stage=stage, step=step).path) for split, stage, step, _ in made}
        left: defaultdict[Place, list[Key]] = defaultdict(list)
        for key in filter(None, map(Key.parse, (path for path in never_played if _stem(path) in begun))):
            if made[_place(key)]:
                left[_place(key)].append(key)
        return [
            Shortfall(tuple(keys), made[place])
            for place, keys in left.items()
            if place not in self._said and not self._blocks.is_cut_off(place[0], place[2])
        ]

    def _complete(self, found: Sequence[Shortfall]) -> Mapping[tuple[str, str], set[int]]:
        """The steps of which all calls with keys were made, by split and stage."""
        complete: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        for split, stage, step, keyed in {_place(key) for key in self._player.asked()} - {
            one.place for one in found
        }:
            if keyed:
                complete[split, stage].add(step)
        return complete

    def _is_over(self, short: Shortfall, complete: Mapping[tuple[str, str], set[int]]) -> bool:
        split, stage, step, keyed = short.place
        if not keyed:  # its block has ended without an alarm: calls of the recorded step came later, too
            return False
        last = max(self._counted(split, stage), default=step)
        return self._blocks.is_over(split, step, complete=complete[split, stage], last=last)

    def _has_one_writer(self, short: Shortfall) -> bool:
        """Whether one process recorded the whole step: where several did, each may make a part again."""
        keys = [*short.missing, *(key for key in self._player.asked() if _place(key) == short.place)]
        return len({about.writer if about else None for about in map(self._about, keys)}) == 1

    def _counted(self, split: str, stage: str) -> Counter[int]:
        if (split, stage) not in self._counts:
            mine = (key for key in recordings(self._storage, split, stage) if self._is_mine(key))
            self._counts[split, stage] = Counter(key.step for key in mine if isinstance(key.call, str))
        return self._counts[split, stage]

    def _recorded(self, place: Place) -> list[Key]:
        """The recordings there are at a place by now."""
        found = recordings(self._storage, *place[:2])
        return [key for key in found if _place(key) == place and self._is_mine(key)]

    def _is_mine(self, key: Key) -> bool:
        return (key.rank, key.world_size) == self._shard and key.step in self._steps

    def _is_known(self, key: Key) -> bool:
        return key in self._player.played or key in self._recorder.recorded

    def _about(self, key: Key) -> About | None:
        try:
            return Recording(self._storage, key).about
        except RolltapeError:  # nobody asked for it; whoever does is told
            return None

    def _key(self, scope: Scope, stage: str, number: int) -> Key | None:
        """The key of a call; None where its name would be too long for one to be recorded."""
        rank, world_size = self._shard
        with suppress(KeyNameError):
            return Key(
                split=scope.split, stage=stage, step=scope.step, call=scope.named(number),
                rank=rank, world_size=world_size,
            )  # fmt: skip
        return None


def _place(key: Key) -> Place:
    return key.split, key.stage, key.step, isinstance(key.call, str)


def _others(more: int) -> str:
    return f"; {more} more {'step' if more == 1 else 'steps'} like this" if more else ""


def _by_stage(found: Sequence[Shortfall]) -> list[list[Shortfall]]:
    stages: dict[tuple[str, str], list[Shortfall]] = {}
    for one in found:
        stages.setdefault(one.place[:2], []).append(one)
    return list(stages.values())


def _stem(path: str) -> str:
    """A file's name as far as the step: a tape may have very many, and a key is made of few."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}"
