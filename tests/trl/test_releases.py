"""The oldest release of TRL that is promised; `make compat` runs every one in docs/compatibility.md."""

from rolltape.releases import LIBRARIES
from tests.over import run_over


def test_the_oldest_release_keeps_the_contract():
    (trl,) = [library for library in LIBRARIES if library.name == "trl"]
    tests = "tests/trl/test_replay.py"
    said = run_over(
        f"trl-{trl.tested[0]}", tests, "-k", "the_replay_is_the_run and (plain or rloo or evaluation)"
    )
    assert said.startswith("3 passed")
