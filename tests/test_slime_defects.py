"""What slime-like dumps get wrong (defect 14), shown absent: groups, ranks, and steps that are not there."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

import rolltape


@dataclass
class Sample:
    """One trajectory, as slime has it."""

    index: int
    tokens: list[int]
    rollout_log_probs: list[float]
    reward: float
    metadata: dict[str, str] = field(default_factory=dict)


def groups(step: int) -> list[list[Sample]]:
    sizes = [3, 1, 2]
    return [
        [
            Sample(10 * group + i, list(range(step + i + 2)), [-0.1] * (i + 1), i / 3, {"group": str(group)})
            for i in range(size)
        ]
        for group, size in enumerate(sizes)
    ]


def test_groups_come_back_nested_as_they_were(tmp_path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        generate = tape.stage("rollout")(groups)
        with tape.step(0):
            generate(0)
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        generate = tape.stage("rollout", inputs=False)(groups)
        with tape.step(0):
            found = generate(99)
    assert found == groups(0)
    assert [len(group) for group in found] == [3, 1, 2]


def test_ranks_do_not_overwrite_each_other(tmp_path) -> None:
    def run(mode: str, rank: int) -> list[list[Sample]]:
        with rolltape.Tape(tmp_path / "t", mode=mode, rank=rank, world_size=2) as tape:
            generate = tape.stage("rollout")(lambda: groups(rank))
            with tape.step(0):
                return generate()

    recorded = [run("record", rank) for rank in (0, 1)]
    assert recorded[0] != recorded[1]
    assert [run("replay", rank) for rank in (0, 1)] == recorded


def test_a_missing_step_is_never_another_one_instead(tmp_path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        generate = tape.stage("rollout")(groups)
        with tape.step(0):
            generate(0)
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        generate = tape.stage("rollout")(groups)
        with pytest.raises(rolltape.StepMissingError, match="step 7 is not on the tape"), tape.step(7):
            generate(7)
