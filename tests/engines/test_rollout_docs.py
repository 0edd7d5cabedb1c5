"""The examples of the generation guide run as they stand."""

import re

import pytest

import rolltape
from rolltape.engines import Prompt
from tests.snippets import ROOT, snippets, why_not_run

DOCS = ROOT / "docs"


def examples(page):
    found = [snippet for snippet in snippets(f"docs/{page}") if snippet.language == "python"]
    return [snippet.text for snippet in found if why_not_run(snippet.page, snippet.first) is None]


def test_the_complete_example_runs_and_replays(tmp_path, tiny_path):
    code = examples("generation.md")[0]
    tape_dir = tmp_path / "tape"
    first = {"model": tiny_path, "tape_dir": tape_dir}
    exec(code, first)
    assert first["engine"].is_started
    assert set(first["rollout"].weights_versions) == {2}
    second = {"model": tiny_path, "tape_dir": tape_dir}
    exec(code, second)
    assert not second["engine"].is_started
    assert second["rollout"].texts == first["rollout"].texts
    assert second["loss"].item() == first["loss"].item()
    with rolltape.Tape(tape_dir, mode="replay") as tape:
        assert sorted(tape.metrics()) == [0, 1, 2]


def test_the_other_examples_run(tiny):
    made = {"picture": "a picture", "engine": tiny, "prompts": ["A"], "params": None}
    prompt, failure = examples("generation.md")[1:]
    exec(prompt, made)
    exec(failure, made)
    assert len(made["rollout"]) == 1
    made |= {"reference_model": tiny.model, "trainer_model": tiny.model}
    for code in examples("log-probs.md"):
        exec(code, made)
    assert Prompt is made["Prompt"]


def test_the_examples_of_servers_run(tiny):
    http, failure, sglang = examples("engines-servers.md")
    made = {}
    exec(http, made)
    exec(sglang, made)
    made = {"engine": tiny, "prompts": ["A"], "params": None}
    exec(failure, made)
    assert len(made["rollout"]) == 1


@pytest.mark.parametrize("page", ["generation.md", "log-probs.md"])
def test_every_name_in_the_guides_exists(page):
    import rolltape.engines

    text = (DOCS / page).read_text()
    for name in re.findall(r"from rolltape\.engines import (.*)", text):
        for one in name.split(", "):
            assert one in rolltape.engines.__all__
