"""The oldest releases of transformers, Ray and vLLM that are promised; `make compat` has all their tests."""

import pytest

from rolltape.releases import LIBRARIES
from tests.over import run_over

PARTS = {
    "transformers": ("tests/engines/test_transformers_engine.py",),
    "ray": ("tests/engines/test_ray_engine.py", "-k", "two_nodes"),
    "vllm": ("tests/engines/test_vllm_engine.py", "-k", "group_of_sixteen or five_updates"),
}
"""What is run of each; the whole file of Ray takes minutes."""


@pytest.mark.parametrize("name", PARTS)
def test_the_oldest_release_generates_and_scores(name):
    (library,) = [library for library in LIBRARIES if library.name == name]
    said = run_over(f"{name}-{library.tested[0]}", *PARTS[name], "-x")
    assert " passed" in said
    assert "failed" not in said
