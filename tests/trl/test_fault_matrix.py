"""Faults put into the reference trainer on replay: each is found, at its step, in its stage, at its sample.

The baseline is recorded once. A fault acts from step 1 on, unless it says otherwise, so that finding it at
step 0 would be wrong too; every step starts from recorded weights, unless it says otherwise.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rolltape
from rolltape.examples.grpo import train
from rolltape.storage import LocalStorage
from rolltape.verify.diagnose.causes import likely_causes
from tests.comparing import compared
from tests.trl.faults import FAULTS, ROWS, SMALL, another_seed


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("faults") / "base"
    with rolltape.Tape(path, mode="record") as tape:
        train.train(train.Options(**SMALL, state=True), tape)
    yield path
    torch.set_num_threads(threads)


class Clock:
    """Which step a replay is at."""

    step = 0

    def tick(self, shown) -> None:
        self.step = shown.step + 1


def replay(base, out, clock, **options):
    """The candidate of a run with these options."""
    with rolltape.Tape(base, mode="replay", out=out) as tape:
        train.train(train.Options(**{**SMALL, "state": True, **options}), tape, clock.tick)
    return compared(LocalStorage(str(base)), LocalStorage(str(out)))


def wrong(monkeypatch, clock, owner, name, faulty, since=1):
    """Put ``faulty(real, *args)`` in the place of a function, from a step on."""
    real = getattr(owner, name)

    def either(*args, **kwargs):
        return faulty(real, *args, **kwargs) if clock.step >= since else real(*args, **kwargs)

    monkeypatch.setattr(owner, name, either)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_where_it_is(name, base, tmp_path, monkeypatch):
    fault, clock = FAULTS[name], Clock()
    another_seed.called = False
    if fault.owner is not None:
        wrong(monkeypatch, clock, fault.owner, fault.name, fault.faulty, fault.since)
    found = replay(base, tmp_path / "out", clock, **fault.options)
    first = found.first
    assert first is not None, "not found"
    assert (first.path, first.step) == (fault.where, fault.step)
    if fault.sample is not None:
        assert first.first.row == fault.sample
    causes = {cause.pattern for cause in likely_causes(found) if cause.named}
    assert causes <= {fault.cause, *fault.also}
    assert fault.cause is None or fault.cause in causes


def test_there_are_enough_of_them():
    assert len(FAULTS) >= 20


CLEAN = [
    {"layout": layout, "micro_batch_size": size, "token_budget": budget}
    for layout, size, budget in [
        *(("padded", size, 40) for size in (1, 2, 3, 4, 7, 16)),
        *(("dynamic", 5, budget) for budget in (12, 20, 33, 60, 100, 400)),
        *(("packed", 5, budget) for budget in (12, 20, 33, 60, 100, 400)),
    ]
]


@pytest.mark.parametrize("options", CLEAN, ids=lambda o: "-".join(map(str, o.values())))
def test_another_layout_is_no_fault(options, base, tmp_path):
    found = replay(base, tmp_path / "out", Clock(), **options)
    assert found.first is None
    assert found.compared


@pytest.mark.parametrize("seed", range(4))
def test_another_order_is_no_fault(seed, base, tmp_path, monkeypatch):
    def shuffled(real, *args):
        found = real(*args)
        order = np.random.default_rng(seed).permutation(ROWS)
        return {
            name: [value[at] for at in order] if isinstance(value, list)
            else value[order] if isinstance(value, np.ndarray) else value
            for name, value in found.items()
        }  # fmt: skip

    clock = Clock()
    # Only what nothing else of the step reads: a trainer that re-orders has to do so everywhere.
    wrong(monkeypatch, clock, train.Stages, "loss", shuffled, since=0)
    found = replay(base, tmp_path / "out", clock, layout=("padded", "dynamic", "packed", "packed")[seed])
    assert found.first is None
    assert found.compared
