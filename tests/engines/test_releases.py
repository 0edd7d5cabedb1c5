"""The oldest release of transformers that is promised; `make compat` has the others."""

from rolltape.releases import LIBRARIES
from tests.over import run_over


def test_the_oldest_release_generates_and_scores():
    (library,) = [library for library in LIBRARIES if library.name == "transformers"]
    said = run_over(f"transformers-{library.tested[0]}", "tests/engines/test_transformers_engine.py", "-x")
    assert " passed" in said
