"""Ranks that ask for the same prompt get different samples; whether an engine is needed, prompts say."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import rolltape


def record(folder: Path, n: int, prompts: tuple[str, ...] = ("a", "b")) -> list[str]:
    """Samples of these prompts on a tape, by one process."""
    with rolltape.Tape(folder, mode="record") as tape, tape.step(0):
        stage = tape.stage("rollout", by="prompt", prompts="prompts", n="n")
        made = stage(lambda prompts, n: {"text": [f"{p} {i}" for p in prompts for i in range(n)]})
        return list(made(prompts, n)["text"])


class Ranks:
    """Two ranks, each in a thread of its own, which tell each other what they ask for."""

    def __init__(self, folder: Path, mode: str = "auto", **options: Any) -> None:
        self.folder, self.mode, self.options = folder, mode, options
        self.made: list[tuple[int, list[str], list[int]]] = []
        self.errors: list[BaseException] = []
        self._said: list[Any] = [None, None]
        self._barrier = threading.Barrier(2, timeout=30)

    def gather(self, rank: int) -> Any:
        def told(said: Any) -> list[Any]:
            self._said[rank] = said
            self._barrier.wait()
            found = list(self._said)
            self._barrier.wait()
            return found

        return told

    def ask(self, *asks: list[tuple[list[str], int]], step: int = 0) -> list[list[list[str]]]:
        """What each rank gets in its calls of one step."""
        found: list[list[list[str]]] = [[], []]
        threads = [
            threading.Thread(target=self._rank, args=(rank, asks[rank], step, found[rank])) for rank in (0, 1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        return found

    def _rank(self, rank: int, calls: list[tuple[list[str], int]], step: int, found: list[Any]) -> None:
        def generate(prompts: list[str], n: int, first: list[int] | None = None) -> dict[str, list[str]]:
            numbers = [0] * len(prompts) if first is None else first
            self.made.append((rank, list(prompts), list(numbers)))
            pairs = zip(prompts, numbers, strict=True)
            return {"text": [f"{p} {i}" for p, start in pairs for i in range(start, start + n)]}

        options = {"version": "any", "gather": self.gather(rank), **self.options}
        try:
            with rolltape.Tape(self.folder, mode=self.mode, rank=rank, world_size=2) as tape:
                stage = tape.stage("rollout", by="prompt", prompts="prompts", n="n", first="first", **options)
                run = stage(generate)
                with tape.step(step):
                    found += [run(prompts, n)["text"] for prompts, n in calls]
        except BaseException as error:
            self.errors.append(error)
            self._barrier.abort()


def test_ranks_that_tell_each_other_share_what_is_there_and_generate_the_rest(tmp_path: Path) -> None:
    record(tmp_path / "tape", 4)
    ranks = Ranks(tmp_path / "tape")
    found = ranks.ask([(["a", "b"], 3)], [(["a"], 3)], step=1)
    assert found[0] == [["a 0", "a 1", "a 2", "b 0", "b 1", "b 2"]]
    assert found[1] == [["a 3", "a 4", "a 5"]]
    assert ranks.made == [(1, ["a"], [4])]


def test_a_later_call_of_the_step_gets_what_no_rank_was_given(tmp_path: Path) -> None:
    record(tmp_path / "tape", 8)
    ranks = Ranks(tmp_path / "tape", mode="replay")
    found = ranks.ask([(["a"], 2), (["a"], 1)], [(["a"], 2), (["a"], 3)], step=1)
    assert found == [[["a 0", "a 1"], ["a 4"]], [["a 2", "a 3"], ["a 5", "a 6", "a 7"]]]
    again = Ranks(tmp_path / "tape", mode="replay").ask([(["a"], 2)], [(["a"], 2)], step=2)
    assert again == [[["a 0", "a 1"]], [["a 2", "a 3"]]], "a later step begins anew"


def test_what_both_lack_has_numbers_of_its_own(tmp_path: Path) -> None:
    record(tmp_path / "tape", 2)
    ranks = Ranks(tmp_path / "tape")
    found = ranks.ask([(["a"], 4)], [(["a"], 4)], step=1)
    assert found == [[["a 0", "a 1", "a 2", "a 3"]], [["a 4", "a 5", "a 6", "a 7"]]]


def test_ranks_that_cannot_tell_each_other_begin_with_their_own_share(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(tmp_path / "tape", 8)
    ranks = Ranks(tmp_path / "tape", mode="replay", gather=None)
    found = ranks.ask([(["a"], 4)], [(["a"], 4)], step=1)
    assert sorted(found[0][0] + found[1][0]) == [f"a {at}" for at in range(8)]
    assert "gather=" not in caplog.text
    alone = Ranks(tmp_path / "tape", mode="replay", gather=None).ask([(["b"], 8)], [(["a"], 4)], step=1)
    assert len(set(alone[0][0])) == 8, "a prompt that one rank asks for is not generated again"
    assert "gather=" in caplog.text


def test_a_gather_that_does_not_hear_all_ranks_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "tape", 2)
    ranks = Ranks(tmp_path / "tape", gather=lambda said: [said])
    with pytest.raises(rolltape.ConfigError, match="1 answers where there are 2 ranks"):
        ranks.ask([(["a"], 1)], [(["a"], 1)], step=1)


def test_whether_an_engine_is_needed_the_prompts_say(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(tmp_path / "tape", 4)

    def declared(**options: Any) -> rolltape.Tape:
        tape = rolltape.Tape(tmp_path / "tape", **options)
        tape.stage("rollout", by="prompt", prompts="prompts", n="n", version="any")(lambda prompts, n=4: None)
        return tape

    with declared(mode="auto") as tape:
        known = {7: {"prompts": ["b", "a"]}, 8: {"prompts": ["a"], "n": 2}}
        assert not tape.needs_engine([7, 8], calls=known), "no such step is on the tape, but all samples are"
        assert tape.needs_engine([0], calls={0: {"prompts": ["a", "c"]}}), (
            "the step is there, the prompt is not"
        )
        assert tape.needs_engine([0], calls={0: {"prompts": ["a"], "n": 5}})
        assert tape.needs_engine([0]), "nobody says which prompts"
        with pytest.raises(rolltape.ConfigError, match="lack 'prompts'"):
            tape.needs_engine([0], calls={0: {"n": 5}})
    with declared(mode="replay") as tape:
        assert not tape.needs_engine([0, 9])
        caplog.set_level(logging.WARNING)
        assert not tape.needs_engine([0], calls={0: {"prompts": ["c"]}})
        assert "step 0 will fail: 4 samples are not on the tape" in caplog.text
    plain = rolltape.Tape(tmp_path / "tape", mode="replay")
    with plain, pytest.raises(rolltape.ConfigError, match="asked by its steps"):
        plain.needs_engine([0], calls={0: {}})
