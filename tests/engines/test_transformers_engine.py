"""TransformersEngine samples what the model says, with its own log-probs, whatever is in the batch."""

import numpy as np
import pytest
import torch

import rolltape
from rolltape.engines import FinishReason, SamplingParams, TransformersEngine, score

PROMPTS = [
    "The quick brown fox",
    [{"role": "user", "content": "What is two and two?"}],
    [20, 21, 22],
    "A",
    "One and one is two, two and two is four, and four and four is",
]
TOLERANCE = 2e-5
"""Between two ways to compute a log-prob in single precision, in nats."""


def recomputed(model, prompt_ids, response_ids, temperature=1.0):
    """What a training model says, one sequence at a time, without cache and padding."""
    ids = torch.from_numpy(np.concatenate([prompt_ids, response_ids]))[None]
    with torch.no_grad():
        logprobs = (model(ids).logits[0].float() / temperature).log_softmax(-1)
    start = len(prompt_ids)
    return logprobs[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0].numpy()


def test_sixteen_completions_for_each_prompt_with_the_trainers_log_probs(tiny):
    made = tiny.generate(PROMPTS, SamplingParams(n=16, max_tokens=40, temperature=0.7, seed=3))
    assert len(made) == 16 * len(PROMPTS)
    assert [len(group) for group in made.groups()] == [16] * 5
    assert made.index.tolist() == list(range(16)) * 5
    assert (made.engine, made.engine_version, set(made.weights_versions)) == (
        "transformers",
        tiny.version,
        {0},
    )
    for row in range(0, len(made), 3):
        again = recomputed(tiny.model, made.prompt_ids[row], made.response_ids[row])
        assert np.abs(again - made.logprobs[row]).max() < TOLERANCE
    assert len({tuple(ids) for ids in made.response_ids}) > 70, "completions of a group are drawn apart"


def test_prompts_are_encoded_as_the_tokenizer_does(tiny):
    made = tiny.generate(PROMPTS, SamplingParams(max_tokens=1))
    chat = tiny.tokenizer.apply_chat_template(PROMPTS[1], add_generation_prompt=True, tokenize=False)
    assert made.prompt_ids[0].tolist() == tiny.tokenizer(PROMPTS[0])["input_ids"]
    assert made.prompt_ids[1].tolist() == tiny.tokenizer(chat)["input_ids"]
    assert made.prompt_ids[2].tolist() == PROMPTS[2]


def test_greedy_is_what_generate_gives(tiny):
    made = tiny.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=30))
    for row, prompt_ids in enumerate(made.prompt_ids):
        ids = torch.from_numpy(prompt_ids)[None]
        theirs = tiny.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=30
        )
        assert made.response_ids[row].tolist() == theirs[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("budget", [1, 150, 65536])
def test_a_seed_gives_the_same_tokens_in_every_batch_and_order(tiny_path, tiny, budget):
    params = SamplingParams(n=4, max_tokens=24, seed=11, top_p=0.9)
    together = tiny.generate(PROMPTS, params)
    engine = TransformersEngine(tiny.model, tiny.tokenizer, token_budget=budget)
    turned = engine.generate(PROMPTS[::-1], params)
    alone = engine.generate([PROMPTS[1]], params)
    by_uid = {(uid, int(i)): row for row, (uid, i) in enumerate(zip(turned.uid, turned.index, strict=True))}
    for row, (uid, index) in enumerate(zip(together.uid, together.index, strict=True)):
        other = by_uid[uid, int(index)]
        assert together.response_ids[row].tolist() == turned.response_ids[other].tolist()
        assert np.abs(together.logprobs[row] - turned.logprobs[other]).max() < TOLERANCE
    assert [ids.tolist() for ids in alone.response_ids] == [
        ids.tolist() for ids in together.response_ids[4:8]
    ]


def test_seeds_differ_and_without_one_torchs_own_counts(tiny):
    def texts(**options):
        return tiny.generate(["A"], SamplingParams(n=2, max_tokens=12, **options)).texts

    assert texts(seed=1) != texts(seed=2)
    assert texts() != texts()
    torch.manual_seed(5)
    first = texts()
    torch.manual_seed(5)
    assert texts() == first


def test_tokens_are_drawn_as_often_as_the_model_says(tiny):
    logits = tiny.model(torch.tensor([[20, 21, 22]])).logits[0, -1].float()
    made = tiny.generate([[20, 21, 22]], SamplingParams(n=4000, max_tokens=1, seed=0, temperature=0.5))
    counts = np.bincount(np.concatenate(made.response_ids), minlength=512)
    expected = (logits / 0.5).softmax(-1).detach().numpy() * 4000
    often = expected > 20
    assert often.sum() > 5
    assert (np.abs(counts - expected)[often] < 5 * np.sqrt(expected[often])).all()


@pytest.mark.parametrize(
    ("options", "most"), [({"top_k": 3}, 3), ({"top_p": 0.3}, 60), ({"top_k": 50, "top_p": 0.5}, 49)]
)
def test_top_k_and_top_p_leave_the_likeliest(tiny, options, most):
    logits = tiny.model(torch.tensor([[20, 21, 22]])).logits[0, -1].float()
    probs, order = logits.softmax(-1).sort(descending=True)
    kept = order[: options.get("top_k", 512)]
    if "top_p" in options:
        inside = probs[: len(kept)] / probs[: len(kept)].sum()
        kept = kept[(inside.cumsum(-1) - inside) < options["top_p"]]
    made = tiny.generate(
        [[20, 21, 22]], SamplingParams(n=500, max_tokens=1, seed=0, logprobs="processed", **options)
    )
    drawn = np.concatenate(made.response_ids)
    assert set(drawn.tolist()) <= set(kept.tolist())
    assert len(kept) <= most
    among = torch.full((512,), -torch.inf).index_copy(0, kept, logits[kept]).log_softmax(-1).detach().numpy()
    assert np.abs(np.concatenate(made.logprobs) - among[drawn]).max() < TOLERANCE


def test_the_two_kinds_of_log_prob(tiny):
    def run(kind, **options):
        return tiny.generate(["A"], SamplingParams(n=8, max_tokens=10, seed=2, logprobs=kind, **options))

    raw, processed = run("raw", temperature=0.5), run("processed", temperature=0.5)
    assert [ids.tolist() for ids in raw.response_ids] == [ids.tolist() for ids in processed.response_ids]
    assert (raw.logprob_kind, processed.logprob_kind) == ("raw", "processed")
    for row in range(8):
        prompt, response = raw.prompt_ids[row], raw.response_ids[row]
        assert np.abs(raw.logprobs[row] - recomputed(tiny.model, prompt, response)).max() < TOLERANCE
        assert (
            np.abs(processed.logprobs[row] - recomputed(tiny.model, prompt, response, 0.5)).max()
            < 2 * TOLERANCE
        )
        assert np.abs(raw.logprobs[row] - processed.logprobs[row]).max() > 0.1
    assert all((row == 0).all() for row in run("processed", temperature=0).logprobs)


@pytest.mark.parametrize("kind", ["raw", "processed"])
def test_top_logprobs(tiny, kind):
    params = SamplingParams(n=3, max_tokens=6, seed=2, top_logprobs=4, logprobs=kind, temperature=0.5)
    made = tiny.generate(PROMPTS[:2], params)
    for row in range(len(made)):
        assert made.top_ids[row].shape == made.top_logprobs[row].shape == (len(made.response_ids[row]), 4)
        assert (np.diff(made.top_logprobs[row]) <= 0).all()
        chosen = made.top_ids[row] == made.response_ids[row][:, None]
        assert np.allclose(made.top_logprobs[row][chosen], made.logprobs[row][chosen.any(1)], atol=1e-6)


def test_the_end_of_sequence_ends_it_and_stays_in_the_tokens(tiny):
    made = tiny.generate(["A"], SamplingParams(n=64, max_tokens=200, seed=0))
    eos = tiny.tokenizer.eos_token_id
    ended = [row for row in made if row.finish_reason is FinishReason.STOP]
    assert 0 < len(ended) < 64
    for row in made:
        assert (row.response_ids[:-1] != eos).all()
        assert (row.response_ids[-1] == eos) == (row.finish_reason is FinishReason.STOP)
        assert "<|im_end|>" not in row.text
        assert row.finish_reason is FinishReason.STOP or len(row.response_ids) == 200
    on = tiny.generate(["A"], SamplingParams(n=8, max_tokens=200, seed=0, ignore_eos=True))
    assert {len(ids) for ids in on.response_ids} == {200}


def test_no_end_before_min_tokens(tiny):
    stop = list(range(256))
    made = tiny.generate(
        ["A"], SamplingParams(n=32, max_tokens=20, min_tokens=5, seed=0, stop_token_ids=stop)
    )
    assert min(len(ids) for ids in made.response_ids) >= 5
    assert any(row.finish_reason is FinishReason.STOP for row in made)
    for row in range(4):
        again = recomputed(tiny.model, made.prompt_ids[row], made.response_ids[row])
        assert np.abs(again - made.logprobs[row]).max() < TOLERANCE, (
            "raw log-probs know nothing of what was banned"
        )


def test_stop_texts_end_the_text_before_them(tiny):
    free = tiny.generate(["A"], SamplingParams(n=32, max_tokens=30, seed=4))
    made = tiny.generate(["A"], SamplingParams(n=32, max_tokens=30, seed=4, stop=["is", "th"]))
    stopped = 0
    for before, after in zip(free, made, strict=True):
        length = len(after.response_ids)
        assert before.response_ids[:length].tolist() == after.response_ids.tolist()
        assert "is" not in after.text
        assert "th" not in after.text
        if after.finish_reason is FinishReason.STOP and length < len(before.response_ids):
            stopped += 1
            assert before.text.startswith(after.text.rstrip("\N{REPLACEMENT CHARACTER}"))
            shown = tiny.tokenizer.decode(after.response_ids)
            assert "is" in shown or "th" in shown
    assert stopped > 3


def test_a_response_ends_with_the_context(tiny):
    made = tiny.generate([[7] * 500, "A"], SamplingParams(max_tokens=20, ignore_eos=True))
    assert [len(ids) for ids in made.response_ids] == [12, 20]
    assert made.finish_reasons[0] is FinishReason.LENGTH


# -- weights ---------------------------------------------------------------------------------------------


def test_five_updates_from_the_trainer(tiny_path):
    engine = TransformersEngine(tiny_path, max_staleness=0)
    trainer = TransformersEngine(tiny_path).model.train()
    optimizer = torch.optim.SGD(trainer.parameters(), lr=0.5)
    fixed = engine.generate(PROMPTS, SamplingParams(n=2, max_tokens=8, seed=0))
    seen = [fixed.logprobs]
    for version in range(1, 6):
        ids = torch.randint(512, (4, 16), generator=torch.Generator().manual_seed(version))
        trainer(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with pytest.raises(rolltape.StaleWeightsError, match=f"1 behind the trainer's {version}"):
            engine.generate(PROMPTS, trainer_version=version)
        engine.update_weights(trainer.named_parameters(), version=version)
        made = engine.generate(PROMPTS, SamplingParams(n=2, max_tokens=8, seed=0), trainer_version=version)
        assert set(made.weights_versions) == {version}
        ours, theirs = score(engine, fixed), score(trainer, fixed)
        assert max(np.abs(a - b).max() for a, b in zip(ours, theirs, strict=True)) == 0
        assert max(np.abs(a - b).max() for a, b in zip(ours, seen[-1], strict=True)) > 0.01
        for row in range(len(made)):
            again = recomputed(trainer, made.prompt_ids[row], made.response_ids[row])
            assert np.abs(again - made.logprobs[row]).max() < TOLERANCE
        seen.append(ours)
    assert trainer.training, "scoring leaves the trainer's model in training mode"


def test_staleness_counts_versions(tiny_path):
    engine = TransformersEngine(tiny_path, max_staleness=2)
    engine.expect_version(2)
    engine.generate(["A"], SamplingParams(max_tokens=1))
    engine.expect_version(3)
    with pytest.raises(rolltape.StaleWeightsError, match="version 0, 3 behind"):
        engine.generate(["A"], SamplingParams(max_tokens=1))
    engine.update_weights(engine.model.state_dict(), version=3)
    assert engine.generate(["A"], SamplingParams(max_tokens=1)).weights_versions.tolist() == [3]


def bad_weights(name, tensors):
    first = "model.layers.0.mlp.up_proj.weight"
    if name == "shape":
        tensors[first] = tensors[first][:-1]
    elif name == "dtype":
        tensors[first] = tensors[first].to(torch.bfloat16)
    elif name == "name":
        tensors["model.layers.0.mlp.up.weight"] = tensors.pop(first)
    elif name == "missing":
        del tensors[first]
    else:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
        return "lm_head.weight"
    return first


@pytest.mark.parametrize("what", ["shape", "dtype", "name", "missing", "tied"])
def test_weights_that_do_not_fit_change_nothing(tiny_path, what):
    engine = TransformersEngine(tiny_path)
    before = {name: tensor.clone() for name, tensor in engine.model.state_dict().items()}
    tensors = {name: tensor + 1 for name, tensor in before.items() if name != "lm_head.weight"}
    tensor = bad_weights(what, tensors)
    with pytest.raises(rolltape.WeightsError) as caught:
        engine.update_weights(tensors, version=9)
    assert tensor.removesuffix("_proj.weight") in str(caught.value)
    assert all(torch.equal(before[name], now) for name, now in engine.model.state_dict().items())
    assert engine.weights_version == 0


def test_tied_weights_may_come_once_or_twice(tiny_path):
    engine = TransformersEngine(tiny_path)
    everything = {name: tensor.clone() for name, tensor in engine.model.state_dict().items()}
    assert "lm_head.weight" in everything
    engine.update_weights(everything)
    engine.update_weights(dict(engine.model.named_parameters()))
    del everything["model.embed_tokens.weight"]
    engine.update_weights(everything)
    assert engine.weights_version == 3
