"""Faults in the middle of a chain of stages, and which stage must be blamed: the one that is wrong, no other.

What a stage only passes on is said of it, with the input that explains it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rolltape
from tests.faults import edits as e
from tests.faults.layout import Layout, write
from tests.faults.table.worlds import ADV, EVEN, LEFT, LOSS, NEW, RAGGED, REF, REW, TWO_RANKS
from tests.faults.world import Fault, World, simulate

MADE = (True, ())
"""Made in the stage itself."""
FORMULAS = ("advantage", "loss")
"""Stages that are computed again. That an error enters at another is said only of a step that began from a
recorded state."""


@dataclass(frozen=True)
class Chain:
    """A fault, and what must be said of each stage that differs."""

    name: str
    fault: Fault
    blame: dict[str, tuple[bool, tuple[str, ...]]]
    """Stage -> whether it made the error, and else the inputs that explain it."""
    world: World = field(default_factory=World)
    layout: Layout = field(default_factory=Layout)


_FROM_REWARD = {"reward": MADE, "advantage": (False, (REW,)), "loss": (False, (ADV,))}
_FROM_ADVANTAGE = {"advantage": MADE, "loss": (False, (ADV,))}
_FROM_REFERENCE = {"ref_logprob": MADE, "loss": (False, (REF,))}
_FROM_LOSS = {"loss": MADE}

CHAINS = [
    Chain("one reward", e.on(REW, e.at(6, None, lambda x: x + 0.6)), _FROM_REWARD),
    Chain("one reward, ragged", e.on(REW, e.at(1, None, lambda x: x - 0.4)), _FROM_REWARD, layout=RAGGED),
    Chain("two rewards swapped", e.on(REW, e.swap(2, 7)), _FROM_REWARD),
    Chain("rewards squared", e.on(REW, e.each(lambda x: x * x)), _FROM_REWARD, layout=LEFT),
    Chain("rewards clipped", e.on(REW, e.each(lambda x: min(x, 0.3))), _FROM_REWARD),
    Chain("rewards by length", e.on(REW, e.by_length(-1)), _FROM_REWARD),
    Chain("rewards a step late", e.on(REW, e.late_of("reward")), _FROM_REWARD),
    Chain(
        "rewards of one rank",
        e.on(REW, e.some(range(1, 16, 2), lambda x: x + 1)),
        _FROM_REWARD,
        layout=TWO_RANKS,
    ),
    Chain(
        "rewards in steps, one off",
        e.on(REW, e.at(4, None, lambda x: x + 1)),
        _FROM_REWARD,
        world=World(rewards="steps"),
    ),
    Chain("advantages of a sample's deviation", e.formula(ADV, e.normalised(ddof=1)), _FROM_ADVANTAGE),
    Chain("advantages without deviation", e.formula(ADV, e.normalised(std=False)), _FROM_ADVANTAGE),
    Chain("advantages over the batch", e.formula(ADV, e.normalised(groups="batch")), _FROM_ADVANTAGE),
    Chain("advantages doubled", e.on(ADV, e.scale(2.0)), _FROM_ADVANTAGE, layout=RAGGED),
    Chain("advantages of the other sign", e.on(ADV, e.scale(-1.0)), _FROM_ADVANTAGE, layout=LEFT),
    Chain("one advantage", e.on(ADV, e.at(9, None, lambda x: x + 0.5)), _FROM_ADVANTAGE),
    Chain("advantages of the neighbour", e.on(ADV, e.roll(1)), _FROM_ADVANTAGE),
    Chain("reference shifted", e.on(REF, e.shift(1)), _FROM_REFERENCE),
    Chain("reference off", e.on(REF, e.add(0.3)), _FROM_REFERENCE, layout=RAGGED),
    Chain("reference of one sample", e.on(REF, e.some([5], lambda r: 1.3 * r)), _FROM_REFERENCE),
    Chain("reference a step late", e.on(REF, e.late_of("ref_log_probs")), _FROM_REFERENCE, world=EVEN),
    Chain("losses doubled", e.on(LOSS, e.scale(2.0)), _FROM_LOSS),
    Chain("one loss", e.on(LOSS, e.at(3, 1, lambda x: x + 1)), _FROM_LOSS, layout=RAGGED),
    Chain("losses of the last tokens", e.on(LOSS, e.place(-1, lambda x: 0.0)), _FROM_LOSS),
    Chain("log-probs scaled", e.on(NEW, e.scale(1.2)), {"loss": MADE}),
]


def said(report: Any) -> dict[str, tuple[bool, tuple[str, ...]]]:
    """What a report says of each stage."""
    return {
        one.stage: (one.made_here, tuple(one.inputs) if not one.made_here else ())
        for one in report.attributions
    }


def attributed(chain: Chain, folder: Path) -> str:
    """What is wrong with what is said of a chain; empty where it is right."""
    baseline = write(simulate(chain.world), folder / f"{chain.name} a", chain.layout)
    candidate = write(simulate(chain.world, chain.fault), folder / f"{chain.name} b", chain.layout)
    found = said(rolltape.compare(baseline, candidate))
    wanted = {stage: told for stage, told in chain.blame.items() if stage in FORMULAS or stage in found}
    return "" if found == wanted else f"{chain.name}: {found} for {wanted}"
