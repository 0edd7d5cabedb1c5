"""Curves over steps, in a real browser: what pointing, dragging, clicking and keys do, and what is drawn."""

import math
import re

import pytest
from playwright.sync_api import expect

import rolltape
from rolltape.steps import StepSelector
from rolltape.viewer.library import Library
from rolltape.viewer.web import assets, charts
from rolltape.viewer.web.single_file import export_pages
from tests.viewer.serving import serve, settled

VALUES = [0.1 + 0.2, 1 / 3, math.nan, 1e-17, 5.0, -2.5, math.inf, 12345678.90123456, 0.0, 7.0]
"""Floats that few digits would not tell apart, and two that no curve can show."""


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    """Two runs of ten steps, which part at step 4; the second logged every other step only."""
    folder = tmp_path_factory.mktemp("curves")
    for name in ("one", "two"):
        with rolltape.Tape(folder / name, mode="record", background=False) as tape:
            stage = tape.stage("rollout")(lambda: {"uid": ["a", "b"], "response": ["x", "y"]})
            for step, value in enumerate(VALUES):
                with tape.step(step):
                    stage()
                    if name == "one" or step % 2 == 0:
                        other = math.nextafter(value, 9) if name == "two" and step == 4 else value
                        tape.log({"loss": other, "only finite": float(step)})
    return folder


@pytest.fixture(scope="module")
def address(curves):
    with serve(Library([str(curves / "one"), str(curves / "two")])) as found:
        yield found


@pytest.fixture
def figure(watched, address):
    """The plot of the loss."""
    page = watched(base_url=address).page
    page.goto("/t/0")
    return loss(page)


def loss(page):
    settled(page)  # what comes later moves the plots
    found = page.locator("figure", has=page.locator("figcaption", has_text=re.compile("^loss")))
    found.locator("canvas").wait_for()
    found.scroll_into_view_if_needed()
    return found


def reading(figure):
    return figure.locator(".read")


def spot(figure, step, last=9):
    """Where on the page a step is, as the plot is padded by a fiftieth on either side."""
    box = figure.locator(".u-over").bounding_box()
    return box["x"] + box["width"] * (0.02 + step / last) / 1.04, box["y"] + 40


def point_at(figure, step):
    figure.page.mouse.move(*spot(figure, step))


def drag(figure, start, end):
    point_at(figure, start)
    figure.page.mouse.down()
    figure.page.mouse.move(*spot(figure, end), steps=4)
    figure.page.mouse.up()


@pytest.mark.parametrize("step", range(10))
def test_pointing_says_the_value_in_a_few_digits(figure, step):
    point_at(figure, step)
    expect(reading(figure)).to_have_text(re.compile(f"^step {step}: "))
    assert float(reading(figure).text_content().split(": ")[1]) == pytest.approx(VALUES[step], 5e-5, 0, True)
    others = figure.page.locator("figure", has_text="only finite").locator(".read")
    expect(others).to_have_text(f"step {step}: {step}")


def test_a_click_opens_the_step_and_back_returns(figure):
    page = figure.page
    page.mouse.click(*spot(figure, 7))
    expect(page).to_have_url(re.compile("/t/0/train/rollout/7$"))
    page.go_back()
    expect(page).to_have_url(re.compile("/t/0$"))


def test_dragging_zooms_opens_nothing_and_a_button_shows_all_again(figure):
    expect(figure.get_by_role("button", name="all steps")).to_be_hidden()
    drag(figure, 2, 5)
    expect(figure.page).to_have_url(re.compile("/t/0$"))
    box = figure.locator(".u-over").bounding_box()
    ends = []
    for x in (box["x"] + 1, box["x"] + box["width"] - 1):
        figure.page.mouse.move(x, box["y"] + 40)
        ends.append(reading(figure).text_content().split(":")[0])
    assert ends == ["step 2", "step 5"]
    figure.get_by_role("button", name="all steps").click()
    point_at(figure, 9)
    expect(reading(figure)).to_have_text("step 9: 7")
    expect(figure.get_by_role("button", name="all steps")).to_be_hidden()


def test_keys_do_all_that_a_mouse_does(figure):
    page, plot = figure.page, figure.locator(".plot")
    plot.focus()
    for key, step in (("ArrowRight", 0), ("ArrowRight", 1), ("End", 9), ("ArrowLeft", 8), ("Home", 0)):
        page.keyboard.press(key)
        expect(reading(figure)).to_have_text(re.compile(f"^step {step}: "))
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("+")
    expect(figure.get_by_role("button", name="all steps")).to_be_visible()
    page.keyboard.press("Home")
    expect(reading(figure)).to_have_text(re.compile("^step 3: "))
    page.keyboard.press("Escape")
    page.keyboard.press("Home")
    expect(reading(figure)).to_have_text(re.compile("^step 0: "))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/t/0/train/rollout/1$"))


def test_the_same_values_are_a_table(figure):
    figure.locator("summary").click()
    rows = figure.locator("tbody tr")
    expect(rows).to_have_count(10)
    cells = [row.locator("td").all_text_contents() for row in rows.all()]
    assert [int(step) for step, _ in cells] == list(range(10))
    assert [float(value) for _, value in cells] == pytest.approx(VALUES, 0, 0, True)
    figure.locator("tbody a").nth(4).click()
    expect(figure.page).to_have_url(re.compile("/t/0/train/rollout/4$"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_curves_are_drawn_in_the_colours_of_the_page_which_can_be_switched(watched, address, theme):
    page = watched(base_url=address, color_scheme=theme).page
    page.goto("/t/0")
    figure = loss(page)
    before = colours(figure)
    assert before["a"] > 100
    assert before["bad"] > 20  # the two values that are not finite
    page.keyboard.press("t")
    after = colours(figure)
    assert after["a"] > 100
    assert after != before


def colours(figure):
    """How many pixels of the canvas have a colour of the page, by its name."""
    return figure.locator("canvas").evaluate("""canvas => {
        const style = getComputedStyle(document.documentElement), found = {};
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
        copy.drawImage(canvas, 0, 0);
        const data = copy.getImageData(0, 0, canvas.width, canvas.height).data;
        for (const name of ["a", "b", "bad"]) {
            const wanted = style.getPropertyValue("--" + name).trim().slice(1).match(/../g).map((two) => parseInt(two, 16));
            found[name] = 0;
            for (let at = 0; at < data.length; at += 4)
                if (wanted.every((value, i) => Math.abs(value - data[at + i]) < 6) && data[at + 3] > 200) found[name] += 1;
        }
        return found;
    }""")  # noqa: E501


def test_two_runs_are_two_curves_with_the_step_where_they_part(watched, address):
    page = watched(base_url=address).page
    page.goto("/c/0/1")
    figure = loss(page)
    expect(figure.locator("figcaption")).to_contain_text("differs from step 4 on")
    box, mark = (figure.locator(name).bounding_box() for name in (".u-over", ".mark"))
    assert mark["x"] == pytest.approx(spot(figure, 4)[0], abs=2)
    assert mark["height"] == pytest.approx(box["height"], abs=1)
    point_at(figure, 4)
    expect(reading(figure)).to_have_text("step 4: one 5 · two 5.000000000000001")
    point_at(figure, 5)
    expect(reading(figure)).to_have_text("step 5: one -2.5")
    seen = colours(figure)
    assert seen["a"] > 50
    assert seen["b"] > 50  # spans the steps it did not log
    drag(figure, 5, 8)
    expect(figure.locator(".mark")).to_be_hidden()
    figure.locator("summary").click()
    expect(figure.locator("tbody tr.warn td")).to_have_text(["4", "5", "5.000000000000001"])
    expect(page.locator("figure", has_text="only finite").locator(".mark")).to_be_hidden()


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 0.9999999999999999, 1.0, 1.0000000000000002],
        [1.0, 1.0000000000000004],
        [-1e300, 1e300],
        [5e-324, 0],
    ],
)
def test_values_next_to_each_other_are_drawn(watched, tmp_path, values):
    with rolltape.Tape(tmp_path / "tape", mode="record", background=False) as tape:
        for step, value in enumerate(values):
            tape.log({"loss": value}, step=step)
    with serve(Library([str(tmp_path / "tape")])) as address:
        page = watched(base_url=address).page
        page.goto("/t/0")
        figure = loss(page)
        point_at(figure, 0)
        expect(reading(figure)).to_contain_text("step 0: ")
        assert colours(figure)["a"] > 0


def test_integers_of_any_size_are_told_apart():
    left, right = ({0: {"tokens": 2**53, "huge": 10**400}}, {0: {"tokens": 2**53 + 1, "huge": 10**400}})
    parted, same = charts.both_charts(charts.curves(left), charts.curves(right), ((0, "a"), (1, "b")), "")
    assert (parted.title, parted.mark, parted.note) == (
        "tokens",
        0,
        "differs from step 0 on, at most 1 apart",
    )
    assert (same.title, same.mark, same.lines[0].values) == ("huge", None, ["inf"])
    both_nan = charts.curves({0: {"loss": math.nan}})
    (chart,) = charts.both_charts(both_nan, both_nan, ((0, "a"), (1, "b")), "")
    assert chart.mark is None


def test_the_name_of_a_metric_is_written_out_in_its_table():
    (chart,) = charts.metric_charts(charts.curves({0: {"lo\u202ess\x1b[31m": 1.0}}), "")
    assert chart.lines[0].name == r"lo\u202ess\x1b[31m"


def test_a_file_has_the_same_plots(watched, curves, tmp_path):
    out = tmp_path / "out.html"
    library = Library([str(curves / "one"), str(curves / "two")])
    out.write_text(export_pages(library, StepSelector.parse("0-9")), "utf-8")
    page = watched().page
    for path, text in (("/t/0", "step 1: 0.33333"), ("/c/0/1", "step 1: one 0.33333")):
        page.goto(f"{out.as_uri()}#{path}")
        figure = loss(page)
        point_at(figure, 1)
        expect(reading(figure)).to_have_text(text)
        assert colours(figure)["a"] > 50
    page.mouse.click(*spot(figure, 6))
    expect(page.locator("nav.crumbs b")).to_have_text("step 6")


def test_without_the_library_everything_else_works(watched, curves, monkeypatch):
    monkeypatch.setattr(assets, "PLOT_SCRIPT", "not-built.js")
    with serve(Library([str(curves / "one")])) as address:
        page = watched(base_url=address).page
        page.goto("/t/0")
        expect(page.locator(".noplots")).to_contain_text("python tools/plots.py")
        expect(page.locator("canvas")).to_have_count(0)
        figure = page.locator("figure", has_text="loss")
        figure.locator("summary").click()
        expect(figure.locator("tbody tr")).to_have_count(10)
        page.locator(".item").first.click()
        expect(page.locator("#groups tbody tr")).to_have_count(2)
