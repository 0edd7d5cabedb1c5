"""Samples over all steps, in a real browser: search, prompts through training, groups, notes, long ones."""

import json
import re
import shutil

import httpx
import numpy as np
import pytest
from playwright.sync_api import expect

import rolltape
from rolltape.sample_notes import Marked, Notes
from rolltape.viewer.library import Library
from rolltape.viewer.sample_search import Question, SampleSearch
from rolltape.viewer.web.guard import POLICY
from tests.viewer.serving import serve

TEXTS = ["two and two is four", "two and two is five", "I do not know"]


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A run of three steps whose prompts come back, with rewards in a stage of their own."""
    folder = tmp_path_factory.mktemp("words") / "words"
    with rolltape.Tape(folder, mode="record") as tape:
        rollout, reward = (tape.stage(name)(lambda value: value) for name in ("rollout", "reward"))
        for step in range(3):
            with tape.step(step):
                who = {"uid": [f"{step}-{at // 3}" for at in range(6)], "index": np.arange(6) % 3}
                asked = ["What is 2 + 2?"] * 3 + [f"Step {step} asks <b>this</b>"] * 3
                rollout(
                    who
                    | {
                        "prompt": asked,
                        "response": TEXTS * 2,
                        "finish_reason": ["stop", "length", "stop"] * 2,
                    }
                )
                reward(who | {"reward": np.array([1.0, step / 4, 0.0] * 2, np.float32)})
    return folder


@pytest.fixture
def served(words, tmp_path, watched):
    """A copy that notes may be put on, and a page of its viewer."""
    shutil.copytree(words, tmp_path / "words")
    with serve(Library([str(tmp_path / "words")])) as address:
        yield watched(base_url=address).page, address, tmp_path / "words"


def rows(page):
    expect(page.locator("[data-grow]:not([data-done]), [data-part]:not([data-done])")).to_have_count(0)
    return page.locator("tbody tr")


def test_samples_are_found_by_numbers_by_text_and_sorted(served):
    page, _, _ = served
    page.goto("/t/0")
    page.keyboard.press("s")
    expect(page).to_have_url(re.compile("/s/0$"))
    expect(rows(page)).to_have_count(18)
    page.locator("input[name=where]").fill("reward > 0.4 and not truncated or step == 2 and reward >= 0.5")
    page.keyboard.press("Enter")
    expect(rows(page)).to_have_count(8)
    page.goto("/s/0?where=truncated&sort=reward&dir=down")
    assert rows(page).locator("td:nth-child(3)").all_text_contents() == [
        "0.5",
        "0.5",
        "0.25",
        "0.25",
        "0",
        "0",
    ]
    page.goto("/s/0?q=is+(four|five)$&regex=1&where=step+in+(1,2)")
    expect(rows(page)).to_have_count(8)
    expect(page.locator("td.prompt").first).to_contain_text("two and two is four")
    page.goto("/s/0?q=<b>this")
    expect(rows(page)).to_have_count(9)
    page.locator("tbody a.open").first.click()
    expect(page.locator("#prompt pre")).to_have_text("Step 0 asks <b>this</b>")


@pytest.mark.parametrize(("query", "why"), [
    ("where=reward+>", "where cannot be read"), ("where=prize+>+1", "there is no column 'prize'"),
    ("where=__import__('os')", "no functions"), ("q=(&regex=1", "not a regular expression"),
    ("q=(.)\\1&regex=1", "not a regular expression"),
])  # fmt: skip
def test_what_cannot_be_looked_for_is_said(served, query, why):
    page, _, _ = served
    page.goto(f"/s/0?{query}")
    expect(page.locator("[role=alert]")).to_contain_text(why)


def test_no_expression_can_make_the_search_run_away(tmp_path):
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"prompt": ["p"], "response": ["a" * 200_000]})()
    search = SampleSearch(Library([str(tmp_path / "t")]), 0, "train", "rollout")
    assert search.find(Question(words="(a+)+$", regex=True), seconds=60).total == 1
    assert search.find(Question(words="(a|aa)+b", regex=True), seconds=60).total == 0
    assert "expression" in search.find(Question(words="((a{1,1000}){1,1000}){1,1000}", regex=True)).problem


def test_hits_come_step_by_step_and_a_request_does_not_wait_for_all(words):
    search = SampleSearch(Library([str(words)]), 0, "train", "rollout")
    first = search.find(Question(words="four"), seconds=0.0)
    assert not first.complete
    while not (last := search.find(Question(words="four"), seconds=0.02)).complete:
        assert last.total <= 6
    assert (last.total, last.searched) == (6, (3, 3))


def visits(page):
    return [row.locator("td").all_text_contents() for row in page.locator(".visits tbody tr").all()]


def test_a_prompt_through_training_is_a_click_from_a_sample(served):
    page, _, _ = served
    page.goto("/t/0/train/rollout/1/0")
    page.get_by_text("this prompt through training").click()
    expect(page).to_have_url(re.compile("/prompt/train/rollout/[0-9a-f]{32}"))
    expect(rows(page)).to_have_count(3)
    expect(page.locator(".role-prompt pre")).to_have_text("What is 2 + 2?")
    assert [cells[3] for cells in visits(page)] == ["33 %"] * 3
    page.goto(page.url + ("&" if "?" in page.url else "?") + "pass=0.5")
    expect(rows(page)).to_have_count(3)
    cells = visits(page)
    assert [(c[0], c[1], c[3]) for c in cells] == [("0", "3", "33 %"), ("1", "3", "33 %"), ("2", "3", "67 %")]
    assert {" ".join(c[5].split()) for c in cells} == {"1 two and two is four"}
    assert {" ".join(c[6].split()) for c in cells} == {"0 I do not know"}
    page.locator(".visits a.open").last.click()
    expect(page.locator(".sides section").first.locator("pre")).to_have_text("two and two is four")
    expect(page.locator(".sides section").last.locator("pre")).to_have_text("I do not know")


def test_prompts_are_listed_with_how_they_fared(served):
    page, _, _ = served
    page.goto("/p/0")
    expect(rows(page)).to_have_count(4)
    page.goto("/p/0?trend=got+better")
    expect(rows(page)).to_have_count(1)
    expect(page.locator("td.prompt")).to_contain_text("What is 2 + 2?")
    page.goto("/p/0?trend=never+passed&pass=1.5")
    expect(rows(page)).to_have_count(4)
    page.goto("/p/0?trend=got+worse")
    expect(page.get_by_text("No prompt is like that.")).to_be_visible()


def test_what_two_samples_of_a_group_say_differently_is_marked(served):
    page, _, _ = served
    page.goto("/t/0/train/rollout/0/0")
    page.keyboard.press("g")
    page.locator("nav.group").last.locator("a").nth(1).click()
    expect(page.locator(".sides mark")).to_have_text(["four", "five"])


def test_a_note_is_written_shown_filtered_and_listed(served):
    page, _, tape = served
    before = {path: path.read_bytes() for path in tape.rglob("*") if path.is_file()}
    page.goto("/t/0/train/rollout/1/4")
    page.keyboard.press("m")
    page.keyboard.type("see\u202e this <b>")
    page.locator("input[name=tags]").fill("odd, reward hack")
    page.locator("#note button").click()
    expect(page.locator("#note [role=status]")).to_have_text("saved")
    page.reload()
    expect(page.locator("#note textarea")).to_have_value("see\\u202e this <b>")
    page.goto("/s/0?tag=odd")
    expect(rows(page)).to_have_count(1)
    expect(page.locator("td.noted .pill")).to_have_text(["odd", "reward hack"])
    page.goto("/t/0/train/rollout/1")
    expect(page.locator("#groups .noted .pill")).to_have_text(["odd", "reward hack"])
    page.goto("/notes/0")
    expect(page.locator("#notes td.prompt")).to_have_text("see\\u202e this <b>")
    page.locator("#notes a.open").click()
    expect(page).to_have_url(re.compile("/t/0/train/rollout/1/4$"))
    assert {path: path.read_bytes() for path in tape.rglob("*") if path.is_file()} == before
    (note,) = Notes(rolltape.open(tape)).read().items()
    assert (note[0], note[1].text) == (Marked("train", "rollout", 1, "1-1", 1), "see\u202e this <b>")


def test_another_site_writes_no_note(served):
    _, address, tape = served
    place = f"{address}/note/0/train/rollout/1/4"
    said, own = {"note": "x", "tags": []}, {"origin": address}
    assert httpx.post(place, json=said).status_code == 403
    assert httpx.post(place, json=said, headers={"origin": "http://evil.example"}).status_code == 403
    assert httpx.post(place, json=said, headers={"origin": "null"}).status_code == 403
    assert httpx.post(place, json=said, headers=own | {"sec-fetch-site": "cross-site"}).status_code == 403
    plain = own | {"content-type": "text/plain"}
    assert httpx.post(place, content=json.dumps(said), headers=plain).status_code == 403
    assert Notes(rolltape.open(tape)).read() == {}
    assert httpx.get(place, headers=own).status_code == 405
    for bad, code in (([], 400), ({"note": 1}, 400), ({"note": "x" * 20_000}, 400), ({"tags": "a"}, 400)):
        assert httpx.post(place, json=bad, headers=own).status_code == code
    assert (
        httpx.post(place, content=b"{", headers=own | {"content-type": "application/json"}).status_code == 400
    )
    assert httpx.post(place, json={"note": "x" * 200_000}, headers=own).status_code == 413
    assert httpx.post(place.replace("/4", "/99"), json=said, headers=own).status_code == 404
    answer = httpx.post(place, json=said, headers=own)
    assert (answer.status_code, answer.headers["content-security-policy"]) == (200, POLICY)


def test_a_viewer_that_may_not_write_has_no_field(words, watched):
    with serve(Library([str(words)]), read_only=True) as address:
        page = watched(base_url=address).page
        page.goto("/t/0/train/rollout/1/4")
        expect(page.locator("#note")).to_contain_text("read only")
        expect(page.locator("textarea")).to_have_count(0)
        headers = {"origin": address}
        answer = httpx.post(f"{address}/note/0/train/rollout/1/4", json={"note": "x"}, headers=headers)
        assert answer.status_code == 400


def test_findings_lead_to_the_samples_that_carry_them(page):
    page.goto("/c/0/1")
    page.locator("#links a", has_text="samples").first.click()
    expect(page).to_have_url(re.compile("/s/0.*against=1"))
    expect(rows(page).first).to_be_visible()
    expect(page.locator("td.prompt").first).to_contain_text(re.compile("at this step by up to"))
    page.locator("tbody a.open").first.click()
    expect(page.locator(".sides section")).to_have_count(2)


def test_a_sample_of_100_000_tokens_is_made_as_it_is_scrolled_to(tmp_path, watched):
    count = 100_000
    numbers = np.linspace(-1, 0, count, dtype=np.float32)
    numbers[7] = np.nan
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        row = {"response_ids": [np.arange(count) % 500, np.arange(3)], "logprobs": [numbers, numbers[:3]]}
        tape.stage("rollout")(lambda: {"uid": ["a", "b"], "prompt": ["p", "q"]} | row)()
    decode = lambda ids: "".join(f"w{one} " for one in ids)  # noqa: E731
    with serve(Library([str(tmp_path / "t")], decode)) as address:
        page = watched(base_url=address).page
        page.goto("/t/0/train/rollout/0/0")
        tokens = page.locator('.tokens[data-side="response"] .tok')
        expect(tokens.first).to_have_text("w0 ")
        assert tokens.count() < 20_000
        expect(tokens.nth(7)).to_have_class(re.compile("nan"))
        last = page.locator(".chunk").last
        last.scroll_into_view_if_needed()
        expect(last.locator(".tok").last).to_have_text(f"w{(count - 1) % 500} ")
        last.locator(".tok").first.hover()
        expect(page.locator("#tip")).to_contain_text(f"token {count - 1000}")
        expect(page.locator("#tip")).to_contain_text("-0.0099901")
        page.locator("[data-copy=ids]").click()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.split(", ") == [str(at % 500) for at in range(count)]
