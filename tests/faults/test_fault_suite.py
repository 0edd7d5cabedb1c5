"""The fault suite: every fault of the table is found at its place, with its cause or none; nothing else is.

``python -m tests.faults NAME`` tries out the rows whose names hold NAME, and prints what was said.
"""

from __future__ import annotations

import pytest

from tests.faults.case import Bases, Figures, table, try_out
from tests.faults.chains import CHAINS, attributed
from tests.faults.table import faults, harmless


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What is said of every row of the table, which is printed."""
    bases = Bases(tmp_path_factory.mktemp("faults"))
    found = [try_out(case, bases) for case in (*faults(), *harmless())]
    print(f"\n{table(found)}")
    return found


def test_the_figures(outcomes):
    figures = Figures.of(outcomes)
    assert figures.place_rate >= 0.98
    assert figures.wrong == 0
    assert figures.named_rate >= 0.85
    assert figures.missed_rate <= 0.01
    assert all(one.case.limit for one in outcomes if not one.case.harmless and not one.found)
    assert figures.alarms == 0
    assert figures.biases >= 15


def test_there_are_enough_of_them():
    assert len(faults()) >= 120
    assert len(harmless()) >= 60
    names = [case.name for case in (*faults(), *harmless())]
    assert len(set(names)) == len(names)


def test_chains_are_attributed(tmp_path):
    wrong = [text for chain in CHAINS if (text := attributed(chain, tmp_path))]
    print("\n".join([f"chains {len(CHAINS)}, attributed right {len(CHAINS) - len(wrong)}", *wrong]))
    assert len(CHAINS) >= 20
    assert len(wrong) <= len(CHAINS) // 10, "\n".join(wrong)
