"""What somebody sees who opens the viewer for the first time: nothing unknown, nothing that misleads."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import numpy as np
import pytest
from playwright.sync_api import expect

import rolltape
from rolltape import cli
from rolltape.examples.grpo.train import Options, train
from rolltape.viewer.launch import runs_in
from rolltape.viewer.library import Library
from rolltape.viewer.series import summarize
from rolltape.viewer.step_view import StepView
from tests.viewer.serving import serve, settled
from tests.viewer.test_pages import chart_data


def record(folder, steps=2, **stages):
    """A run whose stages return what the functions of a step make."""
    with rolltape.Tape(folder, mode="record") as tape:
        made = [tape.stage(name)(make) for name, make in stages.items()]
        for step in range(steps):
            with tape.step(step):
                for make in made:
                    make(step)
    return folder


def ids(rows, eos=2):
    """Token ids of responses, padded to the longest with 0, and their mask."""
    wide = max(map(len, rows))
    found = np.array([[*row, *[0] * (wide - len(row))] for row in rows], np.int64)
    return found, np.array([[1] * len(row) + [0] * (wide - len(row)) for row in rows], np.int64)


# -- what is not known is not drawn


@pytest.mark.parametrize("name", ["response_mask", "completion_mask", "action_mask", None])
def test_truncation_is_told_by_a_mask_and_ends_or_not_at_all(tmp_path, name):
    rows, mask = ids([[5, 6, 7, 8], [5, 2], [9, 9, 9, 2]])
    batch = {"uid": ["a", "b", "c"], "responses": rows} | ({} if name is None else {name: mask})
    library = Library([str(record(tmp_path / "t", 1, rollout=lambda step: batch))])
    view = StepView(library, 0, "train", "rollout", 0)
    if name is None:
        assert view.truncated is None
        assert "truncated" not in summarize(view).values
    else:  # the third is as wide as the batch, and ended by itself
        assert view.truncated.tolist() == [True, False, False]


def test_a_batch_in_which_nothing_ended_says_nothing_of_ends(tmp_path):
    rows, mask = ids([[5, 6, 7], [8, 9, 4]])
    batch = {"uid": ["a", "b"], "responses": rows, "response_mask": mask}
    library = Library([str(record(tmp_path / "t", 1, rollout=lambda step: batch))])
    assert StepView(library, 0, "train", "rollout", 0).truncated is None


def test_the_last_words_of_a_few_are_not_what_ends_responses(tmp_path):
    """Without the token that ends them, the longest of a batch ends as differently as all others."""
    rows, mask = ids([[5, 6, 7], [8, 9, 4, 3], [11, 12], [13, 14, 15, 16, 17]])
    batch = {"uid": list("abcd"), "responses": rows, "response_mask": mask}
    library = Library([str(record(tmp_path / "t", 1, rollout=lambda step: batch))])
    assert StepView(library, 0, "train", "rollout", 0).truncated is None


def test_shares_are_plotted_from_nothing_to_all(page):
    page.goto("/t/0")
    settled(page)
    for title in ("truncated responses (share)", "groups without variance (share)"):
        figure = page.locator("figure", has=page.locator("figcaption", has_text=title))
        assert chart_data(figure)["share"] is True
    banded = page.locator("figure", has=page.locator("figcaption", has_text=re.compile("^reward$"))).first
    expect(banded.locator(".keys")).to_have_text(re.compile("mean.*lowest to highest"))
    banded.locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    assert all(len(number) <= 9 for number in re.findall(r"[-0-9.e]+", banded.locator(".read").inner_text()))
    plot, values = banded.locator(".plot").bounding_box(), banded.locator("details").bounding_box()
    assert values["y"] - plot["y"] - plot["height"] < 40, "no blank space under a plot"


# -- a stage page shows what that stage has


@pytest.fixture(scope="module")
def stateful(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stateful") / "run"
    with rolltape.Tape(folder, mode="record") as tape:
        train(Options(steps=2, prompts=3, n=2, max_tokens=4, state=True), tape)
    return folder


def test_weights_are_no_samples(watched, stateful, capsys):
    with serve(Library([str(stateful)])) as address:
        page = watched(base_url=address).page
        page.goto("/t/0/train/state/1")
        expect(page.locator("#groups")).to_have_count(0)
        expect(page.locator("main")).not_to_contain_text("(no text)")
        expect(page.locator("main")).not_to_contain_text("sample")
        row = page.locator("#returned tbody tr", has_text="q_proj_weight").first
        expect(row).to_contain_text("float32 [64, 64]")
        name = row.locator("td").first.text_content()
        weights = np.asarray(rolltape.open(stateful).samples(1, "state").columns[name].data)
        low, mean, high = (float(row.locator("td").nth(at).text_content()) for at in (3, 4, 5))
        assert [low, mean, high] == pytest.approx([weights.min(), weights.mean(), weights.max()], rel=1e-3)
    with pytest.raises(SystemExit) as left:
        cli.main(["ls", str(stateful), "--stage", "state"])
    assert left.value.code == 0
    assert re.search(r"^ *1 +– ", capsys.readouterr().out, re.M)


def test_a_loss_has_its_value_and_its_prompts(watched, stateful):
    rollout = rolltape.Tape(stateful, mode="replay")
    total = rollout.recording(1, stage="loss").value()["total"]
    prompts = [prompt.text for prompt in rollout.recording(1, stage="rollout").value().prompts]
    with serve(Library([str(stateful)])) as address:
        page = watched(base_url=address).page
        page.goto("/t/0/train/loss/1")
        row = page.locator("#returned tbody tr", has_text="total")
        assert float(row.locator("td").nth(2).text_content()) == pytest.approx(float(total), rel=1e-5)
        expect(page.locator("#groups td.prompt")).to_have_text(prompts)
        assert all(
            text != "–" for text in page.locator('#groups td[data-label="length"]').all_text_contents()
        )
        page.locator("#groups td.prompt a").first.click()
        expect(page.locator("#response")).to_be_visible()


def test_a_replay_shows_the_prompts_of_its_baseline_unasked(watched, runs, truth):
    """The tape names its baseline: it is found without being given."""
    with serve(Library([str(runs / "packed")])) as address:
        page = watched(base_url=address).page
        page.goto("/t/0")
        settled(page)
        page.locator(".steps .item").first.click()
        expect(page.locator("#groups td.prompt")).to_have_text(
            [one.text for one in truth[0]["rollout"].prompts]
        )


def test_a_baseline_elsewhere_is_not_asked_for(tmp_path, monkeypatch):
    """A tape from a stranger that names a store as its baseline makes the viewer ask nobody."""
    record(tmp_path / "a", reward=lambda step: {"uid": ["x"], "reward": np.ones(1)})
    text = (tmp_path / "a/tape.json").read_text()
    assert '"format"' in text
    (tmp_path / "a/tape.json").write_text(
        text.replace('"format"', '"baseline": {"id": "00", "dir": "s3://stranger/run"}, "format"')
    )
    library = Library([str(tmp_path / "a")])
    monkeypatch.setattr("rolltape.reader.run.storage_at", lambda place: pytest.fail(f"asked {place}"))
    assert library.baseline(0) is None


def test_calls_of_one_sample_each_are_as_many_samples(watched, tmp_path):
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        ask = tape.stage("rollout")(lambda uid: {"uid": uid, "response_ids": np.arange(7), "reward": 0.5})
        for uid in ("a", "b", "c"):
            with tape.step(0, key=uid):
                ask(uid)
    with serve(Library([str(tmp_path / "t")])) as address:
        page = watched(base_url=address).page
        page.goto("/t/0/train/rollout/0")
        expect(page.locator(".facts")).to_contain_text("3 samples")


# -- the index


def test_a_folder_stands_for_its_tapes(runs, tmp_path):
    record(tmp_path / "deep/one", rollout=lambda step: {"uid": ["x"]})
    record(tmp_path / "two", rollout=lambda step: {"uid": ["x"]})
    assert runs_in([str(tmp_path)]) == [str(tmp_path / "deep/one"), str(tmp_path / "two")]
    assert runs_in([str(tmp_path / "two"), str(tmp_path)])[0] == str(tmp_path / "two")
    assert len(runs_in([str(tmp_path / "two"), str(tmp_path)])) == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(rolltape.RolltapeError):
        Library(runs_in([str(tmp_path / "empty")]))


def test_one_token_is_a_token(watched, tmp_path):
    record(
        tmp_path / "t",
        1,
        rollout=lambda step: {"uid": ["x"], "prompt_ids": [np.array([5])], "response_ids": [np.array([5])]},
    )
    with serve(Library([str(tmp_path / "t")])) as address:
        page = watched(base_url=address).page
        page.goto("/t/0/train/rollout/0/0")
        expect(page.locator("main")).not_to_contain_text("1 tokens of")


# -- the terminal


def test_browse_without_a_terminal_says_so(runs):
    done = subprocess.run(
        [sys.executable, "-m", "rolltape", "browse", str(runs / "base")],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "browse needs a terminal" in done.stderr
    assert "rolltape show" in done.stderr


def test_browse_explains_its_keys_and_ends_with_its_terminal(runs):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    running = subprocess.Popen(
        [sys.executable, "-m", "rolltape", "browse", str(runs / "base")],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color"},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    os.close(theirs)
    try:
        assert b"grad_norm" in until(ours, b"grad_norm")
        os.write(ours, b"?")
        assert b"Cursor" in until(ours, b"Cursor")
        os.close(ours)
        assert running.wait(30) == 129
    finally:
        if running.poll() is None:
            running.kill()
            running.wait()


def until(terminal, wanted, seconds=60):
    """What a terminal shows, up to something."""
    found, end = b"", time.monotonic() + seconds
    while wanted not in found and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            found += os.read(terminal, 65536)
    return found


@pytest.mark.parametrize("columns", [100, 80, 60])
def test_a_narrow_list_keeps_the_names(runs, columns):
    done = subprocess.run(
        [sys.executable, "-m", "rolltape", "ls", str(runs)], capture_output=True, text=True, check=True,
        env={**os.environ, "COLUMNS": str(columns)},
    )  # fmt: skip
    joined = re.sub(r"\s+", "", done.stdout)
    assert "base" in joined
    assert "packed" in joined
    assert "train/rollout" in joined
    assert all(len(line) <= columns for line in done.stdout.splitlines())
