"""The page of ``rolltape diff --html`` in a real browser: what it says, how it looks, what it never does."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest

import rolltape
from rolltape.cli.app import app as cli
from rolltape.examples.grpo import loss as objective
from rolltape.examples.grpo.train import Options, train
from tests.viewer.conftest import STEPS
from tests.viewer.payloads import PAYLOADS
from tests.viewer.serving import serious


def diff(capsys, *arguments):
    """The exit code of ``rolltape diff``, and what it says as JSON."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        cli.main(["diff", *map(str, arguments), "--json"])
    return left.value.code, json.loads(capsys.readouterr().out)


@pytest.fixture(scope="session")
def broken(runs):
    """A replay of the recorded run whose losses are twice as large."""
    real = objective.token_losses
    logging.disable(logging.INFO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objective, "token_losses", lambda *args: 2 * real(*args))
        with rolltape.Tape(runs / "base", mode="replay", out=runs / "broken") as tape:
            train(Options(steps=STEPS, prompts=5, n=4, max_tokens=6), tape)
    logging.disable(logging.NOTSET)
    return runs / "broken"


@pytest.fixture
def report(runs, broken, tmp_path, capsys):
    """The page about the broken run, and the same as JSON."""
    file = tmp_path / "report.html"
    code, told = diff(capsys, runs / "base", broken, "--tokenizer", runs / "tokenizer", "--html", file)
    assert code == 1
    return file, told


def cells(page, title):
    """The table of a section, row by row."""
    rows = page.locator("section", has=page.get_by_role("heading", name=title, exact=True)).locator(
        "tbody tr"
    )
    return [[cell.strip() for cell in row.locator("td").all_inner_texts()] for row in rows.all()]


def in_order(told, wanted):
    """Things in the order in which a step computes them."""
    return [key for key in dict.fromkeys((e["stage"], e["name"]) for e in told["entries"]) if key in wanted]


def test_it_says_what_the_report_says(watched, report):
    file, told = report
    page = watched().page
    page.goto(file.as_uri())
    assert page.locator("h1").inner_text() == told["sentence"].replace("`", "")
    assert page.locator(".tag").inner_text() == told["verdict"] == "diverged"
    assert [text.strip() for text in page.locator(".cause").all_inner_texts()] == [
        *(f"Looks like: {cause['text']}." for cause in told["causes"]),
        *(one["text"].replace("`", "") for one in told["attributions"]),
    ]
    assert "scaled by 2" in told["causes"][0]["text"]
    assert [row[::2] for row in cells(page, "Findings")] == [[f["path"], f["text"]] for f in told["findings"]]
    words = {True: "yes", False: "no", None: "unknown"}
    assert cells(page, "The same on both sides?") == [
        [words[proof["same"]], proof["what"], proof["how"]] for proof in told["proofs"]
    ]
    unlike = {(e["stage"], e["name"]) for e in told["entries"] if e["verdict"] != "bitwise"}
    assert [tuple(row[:2]) for row in cells(page, "The chain of stages")] == in_order(told, unlike)
    assert page.locator("figure figcaption").all_inner_texts()[:3] == ["reward", "loss", "grad_norm"]


def test_tokens_are_the_texts_that_the_tokenizer_has(watched, report, runs, truth):
    file, told = report
    rollout = truth[0]["rollout"]
    tokenizer = json.loads((runs / "tokenizer" / "tokenizer.json").read_text("utf-8"))
    words = {at: word for word, at in tokenizer["model"]["vocab"].items()}
    words |= {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    row, at = told["first"]["first"]["row"], told["first"]["first"]["token"][0]
    wanted = int(rollout.response_ids[row][at])
    assert told["token"] == {"id": wanted, "text": words[wanted]}
    assert f'token {at} "{words[wanted]}":' in told["sentence"]
    assert told["tokenizer"] == str(runs / "tokenizer")
    page = watched().page
    page.goto(file.as_uri())
    rows = [[words[int(one)] for one in ids] for ids in rollout.response_ids]
    for sample in page.locator(".sample").all():
        spans = sample.locator(".tokens span")
        assert [text.strip() for text in spans.all_inner_texts()] in rows
        assert spans.first.get_attribute("title").startswith("place 0, id ")
    assert page.locator(".sample").count() == 5


def test_without_a_tokenizer_there_are_ids(runs, broken, capsys, tmp_path, watched, truth):
    _, told = diff(capsys, runs / "base", broken, "--html", tmp_path / "x.html")
    assert told["token"]["text"] is None
    assert f"(id {told['token']['id']})" in told["sentence"]
    page = watched().page
    page.goto((tmp_path / "x.html").as_uri())
    rows = [[str(one) for one in ids] for ids in truth[0]["rollout"].response_ids]
    assert page.locator(".sample").first.locator(".tokens span").all_inner_texts() in rows


def test_the_tokenizer_of_the_model_that_the_tape_names_is_used_where_it_is_here(runs, capsys, tmp_path):
    for name, factor in (("a", 1.0), ("b", 2.0)):
        said = {"fingerprint": {"model": str(runs / "tokenizer")}}
        with rolltape.Tape(tmp_path / name, mode="record", background=False, **said) as tape, tape.step(0):
            tape.stage("rollout")(lambda: {"response_ids": np.array([[5, 6]])})()
            tape.stage("loss")(lambda factor=factor: {"log_probs": np.array([[1.0, 3.0 * factor]])})()
    told = diff(capsys, tmp_path / "a", tmp_path / "b")[1]
    assert told["token"]["id"] == 6
    assert f'token 1 "{told["token"]["text"]}": ' in told["sentence"]
    assert told["tokenizer"] == f"{runs / 'tokenizer'}, which the tape names"


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_wide_and_narrow_in_light_and_dark(watched, report, width, scheme):
    page = watched(width=width, color_scheme=scheme).page
    page.goto(report[0].as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    paper, ink = page.evaluate("[getComputedStyle(document.body).backgroundColor, "
                               "getComputedStyle(document.querySelector('h1')).color]")  # fmt: skip
    light, dark = "rgb(255, 255, 255)", "rgb(20, 23, 26)"
    assert paper == {"light": light, "dark": dark}[scheme]
    assert ink != paper
    sizes = page.locator("figure").evaluate_all("all => all.map(one => one.getBoundingClientRect().width)")
    assert all(250 < size <= width for size in sizes)
    assert serious(page) == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_paper_it_is_dark_on_white_and_nothing_is_cut_off(watched, report, tmp_path, scheme):
    page = watched(width=794, color_scheme=scheme).page
    page.goto(report[0].as_uri())
    page.emulate_media(media="print", color_scheme=scheme)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 794
    page.pdf(path=tmp_path / "report.pdf", format="A4", print_background=True)
    assert (tmp_path / "report.pdf").read_bytes()[:5] == b"%PDF-"


def test_whatever_a_tape_holds_is_text(watched, tmp_path, capsys):
    """Every name and every text is a payload; the page shows them, and runs none."""
    texts = [*PAYLOADS, "\u202ereversed", "\x1b[2J", "`code`", "\u200bhidden"]

    def write(path, factor):
        said = {"fingerprint": {text: f"{text}{factor}" for text in texts[:20]}}
        with rolltape.Tape(path, mode="record", background=False, **said) as tape, tape.step(0):
            ids = [np.arange(3) + at for at in range(len(texts))]
            rollout = {"uid": texts, "response_ids": ids, "response": texts}
            tape.stage("rollout")(lambda: rollout | {"response_tokens": [[text] * 3 for text in texts]})()
            rows = {f"{texts[0]}": [row * np.float32(factor) + 1 for row in ids], "uid": texts}
            tape.stage("loss")(lambda: rows)()
            tape.log(dict.fromkeys(texts, factor))
        return path

    file = tmp_path / "evil.html"
    code, _ = diff(capsys, write(tmp_path / "a", 1.0), write(tmp_path / "b", 1.5), "--html", file)
    assert code == 1
    for width in (1280, 400):
        page = watched(width=width).page
        page.goto(file.as_uri())
        shown = page.locator("body").inner_text()
        assert texts[0] in shown
        assert PAYLOADS[4] in shown
        assert "\\u202ereversed" in shown
        assert "\u202e" not in page.content()
        assert page.locator("script, img, iframe, object, embed, form, link, base").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") == width
