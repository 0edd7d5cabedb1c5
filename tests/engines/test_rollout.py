"""A rollout keeps groups together, comes back from a tape exactly, becomes the rectangles of trainers."""

import dataclasses

import numpy as np
import pytest

import rolltape
from rolltape.engines import Completion, FinishReason, LogprobKind, Prompt, Rollout, SamplingParams
from rolltape.engines.api.prompt import prepare


def completion(prompt, response, **changes):
    logprobs = -np.arange(1, len(response) + 1, dtype=np.float32) / 3
    given = {"prompt_ids": prompt, "response_ids": response, "text": str(response), "logprobs": logprobs,
                 "finish_reason": "stop", "weights_version": 4}  # fmt: skip
    return Completion(**(given | changes))


def rollout(*, prompts=("one", [1, 2, 3]), n=2, **changes):
    ready = prepare(prompts)
    groups = [
        [completion([9, 8, at][: at + 1], range(5 + at, 6 + at + i)) for i in range(n)]
        for at in range(len(ready))
    ]
    given = {
        "logprob_kind": LogprobKind.RAW,
        "sampling": SamplingParams(n=n),
        "engine": "test",
        "engine_version": "1.0",
    }
    return Rollout.of(ready, groups, **(given | changes))


def same(left, right):
    """Equal in every field: values, types, dtypes."""
    for field in dataclasses.fields(Rollout):
        one, other = getattr(left, field.name), getattr(right, field.name)
        assert type(one) is type(other), field.name
        if isinstance(one, np.ndarray):
            one, other = [one], [other]
        if isinstance(one, list) and one and isinstance(one[0], np.ndarray):
            assert len(one) == len(other), field.name
            for a, b in zip(one, other, strict=True):
                assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), field.name
        else:
            assert one == other, field.name


def test_groups_and_ids():
    made = rollout()
    assert len(made) == 4
    assert made.group.tolist() == [0, 0, 1, 1]
    assert made.index.tolist() == [0, 1, 0, 1]
    assert made.groups() == [range(0, 2), range(2, 4)]
    assert made.uid[0] == made.uid[1] == made.prompts[0].uid != made.uid[2]
    assert made[3].response_ids.tolist() == [6, 7]
    assert made[3].response_ids.dtype == np.int64
    assert made[3].logprobs.dtype == np.float32
    assert [row.finish_reason for row in made] == [FinishReason.STOP] * 4


def test_uids_are_those_of_the_prompts_whatever_the_batch():
    first, second, again = prepare(["a", [1, 2], "a"])
    assert prepare([[1, 2]])[0].uid == second.uid
    assert again.uid == f"{first.uid}#1"
    assert prepare([Prompt(text="a", uid="mine")])[0].uid == "mine"
    with pytest.raises(rolltape.PromptError, match="prompts 0 and 1 have the same uid 'x'"):
        prepare([Prompt(text="a", uid="x"), Prompt(text="b", uid="x")])


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ("", "text"), ([], "prompt"), (Prompt(messages=[]), "messages"), (Prompt(token_ids=[]), "token_ids"),
        ([{"role": "user"}], "messages[0]"), ([{"content": "hi"}], "messages[0]"),
    ],
)  # fmt: skip
def test_an_empty_prompt_is_named(prompt, field):
    with pytest.raises(rolltape.PromptError, match="prompt 1") as caught:
        prepare(["fine", prompt])
    assert caught.value.where == f"prompts[1].{field}"


@pytest.mark.parametrize(
    "prompt", [3, None, [1, "a"], [[1]], Prompt(), Prompt(text="a", token_ids=[1]), [True]]
)
def test_what_is_no_prompt_is_refused(prompt):
    with pytest.raises(rolltape.PromptError, match="prompt 0"):
        prepare([prompt])


@pytest.mark.parametrize("kind", ["image", "video"])
@pytest.mark.parametrize(
    ("given", "places"), [(0, 1), (1, 2), (2, 1)], ids=["none given", "too few", "too many"]
)
def test_a_place_in_a_chat_has_what_is_shown_there(kind, given, places):
    content = ["Compare:", {"type": "text", "text": "these"}, *[{"type": kind}] * places]
    chat = [{"role": "system", "content": f"An {kind}."}, {"role": "user", "content": content}]
    shown = [np.zeros((1, 2, 2, 3), np.uint8)]
    with pytest.raises(
        rolltape.PromptError, match=f"prompt 1 has {given} {kind}s, .* placeholders for {places}"
    ) as e:
        prepare(["fine", Prompt(messages=chat, **{f"{kind}s": shown * given})])
    assert e.value.where == f"prompts[1].{kind}s"
    assert prepare([Prompt(messages=chat, **{f"{kind}s": shown * places})])


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": "a.png"},
        {"image": "a.png"},
        {"type": "image_url", "image_url": {"url": "a"}},
    ],
    ids=["in the part", "untyped", "an address"],
)
def test_an_image_that_no_engine_would_look_at_is_refused(part):
    with pytest.raises(rolltape.PromptError, match="0 images"):
        prepare([[{"role": "user", "content": [part]}]])


def test_one_prompt_is_not_a_list_of_them():
    with pytest.raises(rolltape.PromptError, match="must be a list of prompts"):
        prepare("hello")


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("prompts", [("one", [9, 8]), ([9], [9, 8]), ([{"role": "user", "content": "hi"}],)])
def test_a_tape_gives_it_back_exactly(tmp_path, prompts, n):
    made = rollout(prompts=prompts, n=n)
    for mode in ("record", "replay"):
        with rolltape.Tape(tmp_path / "tape", mode=mode) as tape:
            stage = tape.stage("rollout")(lambda: made)
            with tape.step(0):
                back = stage()
    assert back is not made
    same(made, back)


def test_optional_columns_and_empty_rollouts_come_back_too(tmp_path):
    extra = {
        "top_ids": [[1, 2], [3, 4]],
        "top_logprobs": [[-0.1, -2.0], [-0.2, -3.0]],
        "routes": np.zeros((2, 3, 2), np.int16),
    }
    given = {
        "logprob_kind": LogprobKind.PROCESSED,
        "sampling": SamplingParams(),
        "engine": "test",
        "engine_version": "",
    }
    full = Rollout.of(prepare(["a"]), [[completion([1], [5, 6], **extra)]], **given)
    empty = Rollout.of([], [], **given)
    assert full.top_ids[0].shape == (2, 2)
    for made in (full, empty):
        for mode in ("rewrite", "replay"):
            with rolltape.Tape(tmp_path / "tape", mode=mode) as tape:
                stage = tape.stage("rollout")(lambda made=made: made)
                with tape.step(0):
                    same(made, stage())


def test_the_tape_knows_samples_by_group_and_index(tmp_path):
    made = rollout()
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        stage = tape.stage("rollout")(lambda: made)
        with tape.step(0):
            stage()
        columns = tape.recording(0).columns
        assert {"uid", "index", "prompt_ids", "response_ids", "response", "logprobs", "finish_reason"} <= set(
            columns
        )
        assert tape.recording(0).samples == 4


def test_what_was_finished_and_the_retry_make_one():
    first, second = rollout(prompts=("a", "b")), rollout(prompts=("c",))
    joined = Rollout.join([first, second])
    assert joined.uid == first.uid + second.uid
    assert joined.group.tolist() == [0, 0, 1, 1, 2, 2]
    assert joined.texts == first.texts + second.texts
    with pytest.raises(rolltape.BatchError, match="same uid"):
        Rollout.join([first, first])
    with pytest.raises(rolltape.BatchError, match="logprob_kind"):
        Rollout.join([first, rollout(prompts=("c",), logprob_kind=LogprobKind.PROCESSED)])


def test_padded_on_the_left_and_on_the_right():
    padded = rollout().to_padded(0, torch=False)
    assert padded.prompts.tolist() == [[0, 9], [0, 9], [9, 8], [9, 8]]
    assert padded.responses.tolist() == [[5, 0], [5, 6], [6, 0], [6, 7]]
    assert padded.input_ids.tolist()[1] == [0, 9, 5, 6]
    assert padded.attention_mask.tolist() == [[0, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert padded.position_ids.tolist() == [[0, 0, 1, 1], [0, 0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 3]]
    assert padded.response_mask.tolist() == [[1, 0], [1, 1], [1, 0], [1, 1]]
    assert (
        padded.rollout_log_probs.tolist()
        == [[np.float32(-1 / 3), 0], [np.float32(-1 / 3), np.float32(-2 / 3)]] * 2
    )


def test_padded_to_given_lengths_as_tensors():
    import torch

    padded = rollout().to_padded(7, prompt_length=3, response_length=4)
    assert padded.prompts.tolist()[0] == [7, 7, 9]
    assert padded.responses.tolist()[0] == [5, 7, 7, 7]
    assert {name: tensor.dtype for name, tensor in padded.columns().items()} == {
        "prompts": torch.int64, "responses": torch.int64, "input_ids": torch.int64,
        "attention_mask": torch.int64, "position_ids": torch.int64, "response_mask": torch.int64,
        "rollout_log_probs": torch.float32,
    }  # fmt: skip


@pytest.mark.parametrize("what", ["prompt", "response"])
def test_what_does_not_fit_is_never_cut(what):
    with pytest.raises(rolltape.BatchError, match=f"the {what} of completion") as caught:
        rollout().to_padded(0, **{f"{what}_length": 1})
    assert caught.value.where.startswith(f"rollout.{what}_ids[")


def test_verl_is_asked_for_where_it_is_absent():
    with pytest.raises(rolltape.MissingDependencyError, match=r'pip install "rolltape\[verl\]"'):
        rollout().to_dataproto(0)
