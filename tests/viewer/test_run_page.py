"""The page of a run: how samples are distributed, what took the time, and what steps are drawn over."""

import json
import re

import numpy as np
import pytest
from playwright.sync_api import expect

import rolltape
from rolltape.steps import StepSelector
from rolltape.viewer.comparisons import Comparisons
from rolltape.viewer.library import Library
from rolltape.viewer.web.charts import Summary, axes, heat_map, spread_charts, time_charts
from rolltape.viewer.web.pages import Pages
from rolltape.viewer.web.single_file import export_pages
from tests.viewer.serving import serve, settled

STEPS = 6


def at(step, **about):
    """The responses and rewards of a step: longer and better with every step."""
    lengths = [2 + (step + i) % 5 for i in range(8)]
    mask = np.array([[place < size for place in range(8)] for size in lengths])
    return {
        "uid": [f"p{i // 2}" for i in range(8)], "response_ids": np.where(mask, 7, 0), "response_mask": mask,
        "reward": np.array([float(i < step) for i in range(8)]), "response": ["x"] * 8,
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("pages")
    for name in ("one", "two"):
        with rolltape.Tape(found / name, mode="record", background=False) as tape:
            rollout = tape.stage("rollout")(at)
            loss = tape.stage("loss")(
                lambda step: {"uid": [f"p{i // 2}" for i in range(8)], "loss": [step] * 8}
            )
            for step in range(STEPS):
                with tape.step(step):
                    rollout(step)
                    loss(step)
                    tape.log({"loss": 1.0 / (step + 1)})
    return found


@pytest.fixture
def page(watched, folder):
    with serve(Library([str(folder / "one"), str(folder / "two")])) as address:
        yield watched(base_url=address).page


def figure(page, title):
    settled(page)
    found = page.locator("figure", has=page.locator("figcaption", has_text=re.compile(title)))
    found.locator("canvas").wait_for()
    found.scroll_into_view_if_needed()
    return found


def draw_over(page, what):
    page.get_by_label("over").select_option(what)
    page.locator(f"#over[data-drawn={what}]").wait_for()


def data(found):
    return json.loads(found.locator("script").text_content())


def test_the_distribution_counts_every_sample_and_a_click_opens_the_step(page):
    page.goto("/t/0")
    reward = figure(page, "^reward: distribution")
    heat = data(reward)["heat"]
    assert heat["columns"] == [[step, step] for step in range(STEPS)]
    assert heat["counts"] == [[8 - step, step] for step in range(STEPS)]
    box = reward.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 10)
    expect(reward.locator(".read")).to_have_text(re.compile(r"^step 5: .*62 %|^step 5: .*63 %"))
    page.mouse.click(box["x"] + box["width"] - 4, box["y"] + 10)
    expect(page).to_have_url(re.compile("/t/0/train/rollout/5$"))


def test_keys_read_it_and_the_table_has_the_quantiles(page):
    page.goto("/t/0")
    length = figure(page, "^response length .*: distribution")
    length.locator(".plot").focus()
    page.keyboard.press("Home")
    expect(length.locator(".read")).to_have_text(re.compile("^step 0: median "))
    length.locator("summary").click()
    expect(length.locator("th")).to_have_count(6)
    heads = length.locator("th").all_text_contents()
    assert heads == ["step", "lowest", "10 %", "median", "90 %", "highest"]
    lowest, highest = (
        length.locator(f"tbody tr:first-child td:nth-child({n})").text_content() for n in (2, 6)
    )
    counts = at(0)["response_mask"].sum(1)
    assert (float(lowest), float(highest)) == (counts.min(), counts.max())


def test_the_time_of_every_stage_is_a_part_of_the_step(page, folder):
    page.goto("/t/0")
    strip = data(figure(page, "^seconds by stage"))
    run = rolltape.open(folder / "one")
    assert [line["name"] for line in strip["lines"]] == ["rollout", "loss"]
    assert strip["stack"]
    for line in strip["lines"]:
        assert line["values"] == pytest.approx(list(run.seconds(line["name"]).values()), 1e-6)
    rate = data(figure(page, "^tokens a second"))["lines"][0]["values"]
    tokens = at(2)["response_mask"].sum()
    assert rate[2] == pytest.approx(tokens / run.seconds("rollout")[2], 1e-6)


@pytest.mark.parametrize("address", ["/t/0", "/c/0/1", "/o?on=0,1"])
def test_steps_are_drawn_over_tokens_or_time_and_the_address_keeps_it(page, address):
    page.goto(address)
    loss = figure(page, "^loss")
    draw_over(page, "tokens")
    total = sum(int(at(step)["response_mask"].sum()) for step in range(2))
    loss.locator(".plot").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(loss.locator(".read")).to_have_text(re.compile(rf"^step 1 \({total}\): .*0\.5"))
    expect(page).to_have_url(re.compile("over=tokens"))
    draw_over(page, "time")
    loss.locator(".plot").focus()
    page.keyboard.press("Home")
    expect(loss.locator(".read")).to_have_text(re.compile(r"^step 0 \(0 s\): "))
    page.goto(address + ("&" if "?" in address else "?") + "over=tokens")
    expect(page.get_by_label("over")).to_have_value("tokens")


def test_one_file_has_them_without_a_server(watched, folder, tmp_path):
    file = tmp_path / "run.html"
    file.write_text(export_pages(Library([str(folder / "one")]), StepSelector.parse("0-2")))
    page = watched().page
    page.goto(file.as_uri())
    assert data(figure(page, "^reward: distribution"))["heat"]["counts"] == [[8, 0], [7, 1], [6, 2]]
    draw_over(page, "tokens")
    loss = figure(page, "^loss")
    loss.locator(".plot").focus()
    page.keyboard.press("Home")
    total = int(at(0)["response_mask"].sum())
    expect(loss.locator(".read")).to_have_text(re.compile(rf"^step 0 \({total}\): "))


def test_the_program_is_on_the_page_and_its_change_on_the_compare_page(folder):
    for name, command in (("one", "python train.py"), ("two", "python train.py --packed")):
        manifest = json.loads((folder / name / "tape.json").read_text())
        manifest["program"] = {"command": command, "commit": "0" * 40}
        (folder / name / "tape.json").write_text(json.dumps(manifest))
    library = Library([str(folder / "one"), str(folder / "two")])
    pages = Pages(library)
    assert "python train.py --packed" in pages.overview(1, None).main
    report = pages.report(0, 1, Comparisons(library).wait(0, 1))
    assert "python train.py --packed" in report
    assert "commit" not in report


def test_what_log_probs_say_of_the_policy_is_drawn_where_they_are(watched, tmp_path):
    """Of two samples of two tokens: ratios of 1 and 2, and a reference that gives each token half."""
    who = {"uid": ["a", "b"], "index": [0, 0]}
    sampled = np.full((2, 2), -1.0)
    trained = sampled + np.log([[1.0, 1.0], [2.0, 2.0]])
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        rows = {"response_ids": np.ones((2, 2), np.int64), "response_mask": np.ones((2, 2), np.int64)}
        tape.stage("rollout")(lambda: who | rows | {"rollout_log_probs": sampled})()
        tape.stage("ref_logprob")(lambda: who | {"ref_log_prob": trained - np.log(2)})()
        tape.stage("loss")(lambda: who | {"log_probs": trained})()
    with serve(Library([str(tmp_path / "t")])) as address:
        page = watched(base_url=address).page
        page.goto("/t/0")
        drawn = {
            title: data(figure(page, f"^{title}"))["lines"][0]["values"]
            for title in ("ratio trainer", "ratios beyond", "effective sample size", "KL to the reference")
        }
    assert drawn["ratio trainer"] == pytest.approx([1.5])
    assert drawn["ratios beyond"] == pytest.approx([0.5])
    assert drawn["effective sample size"] == pytest.approx([(1 + 4) ** 2 / (2 * (1 + 16))])
    assert drawn["KL to the reference"] == pytest.approx([0.5 + np.log(2) - 1])


# -- pure --------------------------------------------------------------------------------------------------


def test_every_value_falls_into_one_cell_whatever_there_is():
    rng = np.random.default_rng(0)
    for case in range(50):
        few = rng.integers(0, 5, 7) / 7.0
        values = [
            sorted(rng.choice([few, rng.normal(size=7)][case % 2], 9).tolist()) for _ in range(1 + 13 * case)
        ]
        found = heat_map(list(enumerate(values)))
        if found is None:
            assert len({value for row in values for value in row}) < 2
            continue
        assert sum(map(sum, found.counts)) == 9 * len(values)
        assert len(found.columns) <= 200
        assert found.columns[0][0] == 0
        assert found.columns[-1][1] == len(values) - 1
        assert found.edges == sorted(found.edges)
        assert len(found.counts[0]) == len(found.edges) - 1


def test_what_is_not_known_is_not_drawn():
    empty = [Summary(0, {}), Summary(1, {})]
    assert spread_charts(empty, "") == time_charts(empty, "") == []
    assert axes(empty) == {"time": {}, "tokens": {}}
    untimed = [Summary(0, {}, seconds={"rollout": 0.0}, tokens=5)]
    assert time_charts(untimed, "") == []
