"""Runs and reports in a notebook: what it shows is safe and needs nobody."""

import html
import re
from html.parser import HTMLParser

import rolltape

HOSTILE = "<script>pwned()</script>\x1b[31m\u202e"


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)


def parsed(text):
    found = Tags()
    found.feed(text)
    return found


def record(folder, loss=0.5):
    with rolltape.Tape(folder, mode="record", fingerprint={"model": HOSTILE}) as tape:
        rollout = tape.stage("rollout")(lambda: {"uid": ["a", "b"], "reward": [0.0, 1.0]})
        for step in range(3):
            with tape.step(step):
                rollout()
                tape.log({"loss": loss / (step + 1), HOSTILE: 10**400, "nan": float("nan")})
    return folder


def test_a_run_shows_its_facts_and_curves(tmp_path):
    shown = parsed(rolltape.open(record(tmp_path / "a"))._repr_html_())
    assert set(shown.tags) <= {"div", "table", "tr", "th", "td", "svg", "polyline"}
    text = " ".join(shown.text)
    assert "3 of train, the last 2" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    points = [value for name, value in shown.attributes if name == "points"]
    assert len(points) == 1, "of loss; the others have nothing that can be drawn"
    assert len(points[0].split()) == 3
    assert not any(re.search("https?:|url\\(", str(value)) for _, value in shown.attributes)


def test_an_empty_tape_and_one_with_a_damaged_line_are_shown(tmp_path):
    rolltape.Tape(tmp_path / "empty", mode="record").close()
    assert "none yet" in rolltape.open(tmp_path / "empty")._repr_html_()
    folder = record(tmp_path / "a")
    lines = (folder / "train/metrics.jsonl").read_bytes().splitlines()
    (folder / "train/metrics.jsonl").write_bytes(
        lines[0] + b"\n" + lines[1].replace(b"loss", b"lass") + b"\n"
    )
    assert "problem" in rolltape.open(folder)._repr_html_()


def test_a_report_is_the_page_of_diff_in_a_frame_without_rights(tmp_path):
    report = rolltape.compare(record(tmp_path / "a"), record(tmp_path / "b", 0.75))
    shown = parsed(report._repr_html_())
    assert shown.tags == ["iframe"]
    attributes = dict(shown.attributes)
    assert attributes["sandbox"] is None, "no script runs in it, and it is nobody's origin"
    assert "loss" in attributes["srcdoc"]
    assert html.escape(report.sentence.split("`")[0]) in attributes["srcdoc"]
