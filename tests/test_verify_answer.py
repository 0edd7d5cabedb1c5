"""The answer is one on every surface: the sentence, how sure it is, the command that shows the sample."""

from __future__ import annotations

import json
import shlex
from html import unescape
from xml.etree import ElementTree as xml

import numpy as np
import pytest

import rolltape
from rolltape.pytest_plugin import assert_matches_tape
from rolltape.verify.report.html_page import page
from tests.cli_tapes import in_terminal, run


def train(path, off=(), steps=3, size=0.25, **options):
    """Four samples; ``off`` is (step, sample, token) of a loss that is wrong."""
    with rolltape.Tape(path, **options) as tape:
        rollout = tape.stage("rollout")(
            lambda step: {
                "uid": [f"u{at}" for at in (3, 1, 0, 2)],
                "response_ids": [np.arange(n) + step for n in (4, 2, 5, 3)],
                "long_name_of_a_column_with_text": ["a b c"] * 4,
            }
        )
        loss = tape.stage("loss", replay=False)(lambda value: value)
        for step in range(steps):
            with tape.step(step):
                batch = rollout(step)
                rows = [np.sin(ids).astype(np.float32) for ids in batch["response_ids"]]
                if off and step == off[0]:
                    rows[off[1]][off[2]] += np.float32(size)
                order = [2, 0, 3, 1]  # the loss has its samples in another order than the rollout
                loss({"uid": [batch["uid"][at] for at in order], "log_probs": [rows[at] for at in order]})
                tape.log({"grad_norm": float(sum(row.sum() for row in rows))})
    return path


@pytest.fixture
def pair(tmp_path):
    base = train(tmp_path / "base tape", mode="record")
    train(base, off=(1, 3, 2), mode="replay", out=tmp_path / "new")
    return base, tmp_path / "new"


def test_every_surface_carries_the_answer(pair, tmp_path, monkeypatch):
    base, new = pair
    report = rolltape.compare(base, new)
    said = [report.sentence, str(report.confidence), report.view]
    assert report.confidence.level == "high"
    assert report.view == f"rolltape view '{base}' {new} --at train/rollout/1/3"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    files = {"--junit": tmp_path / "out.xml", "--html": tmp_path / "out.html"}
    done = run("diff", base, new, *[word for pair in files.items() for word in pair], "--github")
    annotation = next(line for line in done.stdout.splitlines() if line.startswith("::error"))
    failures = [case.find("failure").text for case in xml.parse(files["--junit"]).getroot() if len(case)]
    assert failures
    document = json.loads(run("diff", base, new, "--json").stdout)
    assert [
        document["sentence"],
        "{level} ({why})".format(**document["confidence"]),
        document["view"],
    ] == said
    html = unescape(files["--html"].read_text().replace("<code>", "").replace("</code>", ""))
    summary = unescape((tmp_path / "summary.md").read_text())
    for text in said:
        plain = text.replace("`", "")
        assert text in done.stdout
        assert text.replace("%", "%25") in annotation
        assert all(text in failure for failure in failures)
        assert plain in html.replace("`", "")
        assert plain in summary.replace("`", "")


def test_of_a_clean_pair_too(tmp_path):
    base = train(tmp_path / "base", mode="record")
    train(base, mode="replay", out=tmp_path / "new")
    report = rolltape.compare(base, tmp_path / "new")
    assert report.confidence.level == "high"
    assert report.view == f"rolltape view {base} {tmp_path / 'new'}"
    done = run("diff", base, tmp_path / "new", "--junit", tmp_path / "out.xml", "--github")
    assert report.sentence in (tmp_path / "out.xml").read_text()
    notice = next(line for line in done.stdout.splitlines() if line.startswith("::notice"))
    assert str(report.confidence) in notice
    assert report.sentence in page(report)


def test_a_failing_test_says_it(pair):
    base, new = pair

    class Tape:
        dir, out = str(base), type("Out", (), {"dir": str(new)})

        def flush(self):
            pass

    with pytest.raises(pytest.fail.Exception) as failed:
        assert_matches_tape(Tape())
    report = rolltape.compare(base, new)
    for text in (report.sentence, str(report.confidence), report.view):
        assert text in str(failed.value)


@pytest.mark.parametrize(("size", "level"), [(1.0, "high"), (8e-5, "medium"), (1.4e-5, "low")])
def test_confidence_follows_how_far_beyond_its_limit_it_is(tmp_path, size, level):
    base = train(tmp_path / "base", mode="record")
    train(base, off=(1, 0, 0), size=size, mode="replay", out=tmp_path / "new")
    report = rolltape.compare(base, tmp_path / "new")
    assert report.confidence.level == level
    assert "the rollouts are proven the same" in report.confidence.why


def test_and_what_is_proven_of_the_inputs(tmp_path):
    base = train(tmp_path / "base", mode="record")
    train(base, off=(1, 0, 0), mode="replay", out=tmp_path / "new")
    (tmp_path / "new" / "replayed.jsonl").unlink()
    report = rolltape.compare(base, tmp_path / "new")
    assert report.confidence.level == "medium"
    assert "not proven the same" in report.confidence.why


def test_the_command_is_one_that_the_viewer_takes(pair, monkeypatch):
    """What it would open is the page of this very sample, of both runs."""
    from rolltape.cli.commands import view

    opened = []
    monkeypatch.setattr(
        view, "serve", lambda tapes, ready, **rest: (opened.append(tapes), ready("http://x:1/?token=s", ""))
    )
    _, *words = shlex.split(rolltape.compare(*pair).view)
    done = run(*words, "--no-open")
    assert done.exit_code == 0, done.output
    assert opened == [tuple(map(str, pair))]
    assert done.stdout.strip() == "http://x:1/c/0/1/train/rollout/1/3?token=s"
    assert (
        run("view", pair[0], "--at", "train/rollout/1", "--no-open")
        .stdout.strip()
        .startswith("http://x:1/t/0/train/rollout/1?")
    )
    for wrong in ("train/rollout", "train/../3", "train/rollout/x", "train/rollout/1/2/3"):
        assert run("view", pair[0], "--at", wrong, "--no-open").exit_code == 2


def test_eighty_columns_keep_what_diverged_and_break_between_words(pair):
    _, shown = in_terminal("diff", *pair, columns=80)
    text = shown[shown.index("First divergence") :]
    plain = [line.rstrip() for line in _without_colour(text).splitlines()]
    assert "loss/log_probs" in text
    assert "metrics/grad_norm" in text
    assert all(len(line) <= 80 for line in plain if not line.startswith("See it:"))
    sentence = rolltape.compare(*pair).sentence
    joined = " ".join(plain)
    assert " ".join(sentence.split()) in " ".join(joined.split())


@pytest.mark.parametrize("columns", [60, 80])
def test_no_word_of_the_table_is_lost_in_a_narrow_terminal(tmp_path, columns):
    for name, steps in (("a", 2), ("b", 1)):
        with rolltape.Tape(tmp_path / name, mode="record") as tape:
            for step in range(steps):
                tape.log({"policy/grad_norm": 1.0}, step=step)
    _, shown = in_terminal("diff", tmp_path / "a", tmp_path / "b", columns=columns)
    table = _without_colour(shown[shown.index("what") :])
    assert "the candidate did not log it at this step" in " ".join(
        " ".join(line[40:] for line in table.splitlines()[2:6]).split()
    )


def _without_colour(text):
    import re

    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


# -- two tapes that have little to say to each other ---------------------------------------------------------


def test_steps_that_are_on_neither_tape_are_said_to_be(pair):
    done = run("diff", *pair, "--steps", "90-")
    assert done.exit_code == 3
    first = done.stdout.splitlines()[0]
    assert first == (
        "Nothing to compare: no step of 90- is on the tapes; "
        "the baseline has steps 0-2, the candidate has steps 0-2."
    )


def test_two_unrelated_runs_are_said_to_be_and_fill_no_screen(tmp_path):
    for name in "ab":
        with rolltape.Tape(tmp_path / name, mode="record") as tape:
            stages = {n: tape.stage(n)(lambda value: value) for n in ("rollout", f"reward_{name}", "loss")}
            for step in range(12):
                with tape.step(step):
                    uid = [f"{name}.{step}.{at}" for at in range(4)]
                    draw = np.random.default_rng([step, ord(name)])
                    for stage in stages.values():
                        columns = {f"c{at}": draw.normal(size=4) for at in range(15)}
                        stage({"uid": uid, "response_ids": draw.integers(0, 9, (4, 5)), **columns})
                    tape.log({f"{name}/{at}": float(at) for at in range(60)} | {"loss": float(draw.normal())})
    done = run("diff", tmp_path / "a", tmp_path / "b")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert "the rollouts have no sample in common, so these are two different runs" in lines[0]
    assert len(lines) < 40
    assert "more things: --json and --html FILE have all" in done.stdout
    document = json.loads(run("diff", tmp_path / "a", tmp_path / "b", "--json").stdout)
    assert len(document["entries"]) > 100
