"""Batches of other trainers: padded rectangles with masks, chats with tools and images, calls and shards."""

import re
import shutil

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

import rolltape
from rolltape.engines import Prompt, Rollout, SamplingParams
from rolltape.engines.api.completion import Completion
from rolltape.viewer.library import Library
from rolltape.viewer.prompt_groups import find_groups
from rolltape.viewer.sample_view import read_sample
from rolltape.viewer.step_view import StepView
from tests.viewer.serving import serve, settled


def record(folder, value, stage="rollout", step=0, **options):
    with rolltape.Tape(folder, mode="record", **options) as tape, tape.step(step):
        tape.stage(stage)(lambda: value)()
    return Library([str(folder)])


def padded():
    """Prompts padded on the left, responses on the right; a tool answers in the response of sample 0."""
    return {
        "uid": ["a", "a", "b"],
        "prompts": np.array([[0, 0, 5], [0, 4, 5], [3, 4, 5]]),
        "responses": np.array([[7, 8, 9, 0], [7, 0, 0, 0], [7, 8, 9, 6]]),
        "attention_mask": np.array([[0, 0, 1, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]]),
        "response_mask": np.array([[1, 0, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]),
        "rollout_log_probs": np.array([[-1, -2, -3, 0], [-4, 0, 0, 0], [-5, -6, -7, -8]], np.float32),
        "old_log_probs": np.array([[-1, -2, -2, 0], [-4, 0, 0, 0], [-5, -6, -7, -8]], np.float32),
        "token_level_scores": np.array([[0, 0, 1, 0], [0.5, 0, 0, 0], [0, 0, 0, 2]], np.float32),
    }


def test_padding_is_left_out(tmp_path):
    view = StepView(record(tmp_path / "t", padded()), 0, "train", "rollout", 0)
    one = read_sample(view, 0)
    assert [token.id for token in one.tokens.prompt] == [5]
    assert [(token.id, token.trained) for token in one.tokens.response] == [(7, True), (8, False), (9, True)]
    scales = {scale.name: scale.values for scale in one.tokens.scales}
    assert scales["log-prob"] == [-1, -2, -3]
    assert scales["mismatch"] == [0, 0, 1]
    assert one.reward == 1
    groups = find_groups(view)
    assert [(g.uid, g.samples, g.rewards) for g in groups] == [("a", [0, 1], [1.0, 0.5]), ("b", [2], [2.0])]
    assert [g.truncated for g in groups] == [None, None]  # nothing shows what ends a response
    assert groups[0].length == 2


def test_stages_in_another_order_are_matched_by_uid_and_index(tmp_path):
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(
            lambda: {"uid": ["a", "a", "b"], "index_in_group": [0, 1, 0], "response": ["x", "y", "z"]}
        )()
        tape.stage("reward")(
            lambda: {"uid": ["b", "a"], "index_in_group": [0, 1], "reward": np.array([3.0, 2.0])}
        )()
    view = StepView(Library([str(tmp_path / "t")]), 0, "train", "rollout", 0)
    assert [read_sample(view, at).reward for at in range(3)] == [None, 2.0, 3.0]


def test_calls_and_shards_of_a_step_are_one(tmp_path):
    for rank in (0, 1):
        with rolltape.Tape(tmp_path / "t", mode="record", rank=rank, world_size=2) as tape, tape.step(0):
            stage = tape.stage("rollout")(lambda name: {"uid": [name], "response": [f"said {name}"]})
            stage(f"{rank} 0")
            stage(f"{rank} 1")
    view = StepView(Library([str(tmp_path / "t")]), 0, "train", "rollout", 0)
    said = [read_sample(view, at).response[0].parts[0].text for at in range(len(view.main))]
    assert sorted(said) == ["said 0 0", "said 0 1", "said 1 0", "said 1 1"]


def test_a_conversation_with_tools_and_images_is_one(watched, tmp_path):
    red = Image.new("RGB", (12, 8), (255, 0, 0))
    chat = [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "what colour?"}, {"type": "image", "image": red}],
        },
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "look", "arguments": {"at": 3}}}],
        },
        {"role": "tool", "content": "red"},
    ]
    value = {"uid": ["a"], "messages": [chat], "response": ["It is red."], "reward": [1.0]}
    with serve(record(tmp_path / "t", value)) as address:
        page = watched(base_url=address).page
        page.goto("/t/0/train/rollout/0/0")
        expect(page.locator("#prompt h3")).to_have_text(["system", "user", "assistant", "tool"])
        expect(page.locator("#prompt h4")).to_have_text("calls look")
        expect(page.locator("#prompt pre.data")).to_contain_text('"at": 3')
        picture = page.locator("#prompt img")
        expect(picture).to_have_attribute("src", re.compile("^data:image/png;base64,"))
        assert picture.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [12, 8]
        expect(page.locator("#response pre")).to_have_text("It is red.")


def test_images_of_prompts_given_to_an_engine_are_shown(tmp_path):
    prompts = [
        Prompt(text="see", uid="a", images=[Image.new("RGB", (3, 2), (0, 255, 0))]),
        Prompt(text="b", uid="b"),
    ]
    library = record(tmp_path / "t", rollout(prompts, 2))
    view = StepView(library, 0, "train", "rollout", 0)
    assert [len(read_sample(view, at).images) for at in range(4)] == [1, 1, 0, 0]
    assert read_sample(view, 2).prompt[0].parts[0].text == "b"


def test_one_completion_for_each_prompt_shows_the_prompt(tmp_path):
    library = record(tmp_path / "t", rollout([Prompt(text="one", uid="a"), Prompt(text="two", uid="b")], 1))
    view = StepView(library, 0, "train", "rollout", 0)
    assert [read_sample(view, at).prompt[0].parts[0].text for at in range(2)] == ["one", "two"]


def rollout(prompts, n):
    one = Completion(
        prompt_ids=np.array([1]), response_ids=np.array([2, 3]), text="t",
        logprobs=np.array([-1.0, -2.0], np.float32), finish_reason="stop", weights_version=0,
    )  # fmt: skip
    return Rollout.of(
        prompts,
        [[one] * n for _ in prompts],
        logprob_kind="raw",
        sampling=SamplingParams(n=n),
        engine="e",
        engine_version="1",
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_shown_as_such(watched, tmp_path, value):
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        batch = {
            "uid": ["a", "a"],
            "response": ["x", "y"],
            "reward": np.array([value, 1.0]),
            "response_ids": [np.array([1, 2])] * 2,
            "logprobs": [np.array([value, -1.0], np.float32)] * 2,
        }
        tape.stage("rollout")(lambda: batch)()
        tape.log({"loss": float(value)})
    with serve(Library([str(tmp_path / "t")])) as address:
        page = watched(base_url=address).page
        page.goto("/t/0")
        settled(page)
        figure = page.locator("figure", has_text="loss")
        figure.locator(".plot").focus()
        page.keyboard.press("Home")
        expect(figure.locator(".read")).to_have_text(f"step 0: {value}")
        page.goto("/t/0/train/rollout/0")
        expect(page.locator("#groups tbody tr")).to_have_count(1)
        page.goto("/t/0/train/rollout/0/0")
        expect(page.locator(".tok.nan")).to_have_count(1)


def test_a_number_that_is_none_spoils_no_other_sample(tmp_path):
    rows = [[np.nan, 1.0], [], [2.0, 4.0], [np.inf, -np.inf], [5.0], []]
    value = {"uid": list("abcdef"), "logprobs": [np.array(row, np.float32) for row in rows]}
    found = StepView(record(tmp_path / "t", value), 0, "train", "rollout", 0).main
    np.testing.assert_array_equal(found.numbers("logprobs"), [np.nan, 0, 6, np.nan, 5, 0])
    np.testing.assert_array_equal(found.means("logprobs"), [np.nan, np.nan, 3, np.nan, 5, np.nan])
    padded = {"uid": ["a", "b"], "old_log_probs": np.array([[-1, -3, 0], [0, 0, 0]], np.float32)}
    view = StepView(record(tmp_path / "u", padded), 0, "train", "rollout", 0)
    np.testing.assert_array_equal(view.main.means("old_log_probs"), [-2, np.nan])


def test_a_damaged_file_is_said_and_hides_nothing_else(watched, runs, tmp_path):
    shutil.copytree(runs / "base", tmp_path / "t")
    file = tmp_path / "t/train/rollout/step_000001.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    with serve(Library([str(tmp_path / "t")])) as address:
        one = watched(base_url=address)
        one.page.goto("/t/0")
        settled(one.page)
        assert one.page.goto("/t/0/train/rollout/1").status == 500
        expect(one.page.locator("pre")).to_contain_text("step_000001.parquet")
        assert one.page.goto("/t/0/train/rollout/2").status == 200
        one.problems.clear()  # the browser notes the 500


def test_a_reward_without_uids_is_matched_by_its_order(watched, tmp_path):
    """As TRL records it: the reward of a batch is an array, the samples are known by their prompts."""
    rewards = np.array([[0.5, 1.0], [0.25, 0.0], [2.0, 1.0]], np.float32)
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        rollout = {"uid": ["a", "a", "b"], "prompt": ["p", "p", "q"], "completion_text": ["x", "y", "z"]}
        tape.stage("rollout")(lambda: rollout)()
        tape.stage("reward")(lambda: {"rewards": rewards})()
    with serve(Library([str(tmp_path / "t")])) as address:
        page = watched(base_url=address).page
        page.goto("/t/0/train/rollout/0")
        expect(page.locator('td[data-label="best"]')).to_have_text(["1.5", "3"])
        expect(page.locator('td[data-label="worst"]')).to_have_text(["0.25", "3"])
        expect(page.locator('td[data-label="cut"]')).to_have_text(["–", "–"])
        page.goto("/t/0/train/rollout/0/1")
        expect(page.locator(".facts")).to_contain_text("reward 0.25")


def test_a_tokenizer_says_what_a_tape_of_token_ids_says(watched, tmp_path):
    """As verl records it: padded ids, a mask, and no text of the response."""
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        batch = {
            "uid": ["a", "a"],
            "prompts": np.array([[0, 0, 104, 105], [0, 0, 104, 105]]),
            "responses": np.array([[111, 107, 0], [110, 111, 33]]),
            "attention_mask": np.array([[0, 0, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1, 1]]),
        }
        tape.stage("rollout")(lambda: batch)()
    with serve(Library([str(tmp_path / "t")], lambda ids: bytes(ids).decode())) as address:
        page = watched(base_url=address).page
        for sample, text in enumerate(["ok", "no!"]):
            page.goto(f"/t/0/train/rollout/0/{sample}")
            expect(page.locator("#prompt pre")).to_have_text("hi")
            expect(page.locator("#response pre")).to_have_text(text)
        expect(page.locator("#color")).to_have_count(0)
        page.hover('.tokens[data-side="response"] .tok >> nth=2')
        expect(page.locator("#tip")).to_contain_text("id 33")
        page.goto("/t/0/train/rollout/0?q=no!")
        expect(page.locator("#groups td.prompt")).to_have_text("hi")
