"""Engines against what they are built on, in one run with one real model: SmolLM2-135M-Instruct, in float32.

python -m benchmarks --only generation        (in the environment of requirements/engines.txt)
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks import measure
from benchmarks.promises import Figure
from benchmarks.report import Part, console

QUESTIONS = [
    "What is the capital of France?",
    "Name three colours of the rainbow, and say which of them is the warmest.",
    "Two trains leave two towns towards each other. When do they meet?",
    "Hello!",
]
GROUP = 4
TOKENS = 24

Pair = tuple[Callable[[], object], Callable[[], object]]


def section(folder: Path, rounds: int) -> Part:
    """All comparisons; in-process vLLM last, as it binds the process to cores of its choice."""
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    from tests.engines import models

    path = models.smollm2()
    count = len(QUESTIONS) * GROUP
    console.print(
        f"[bold]generation[/]: SmolLM2-135M, {count} completions of {TOKENS} tokens, {rounds} rounds"
    )
    table = Table("", "s", "tokens/s", "against, s", "tokens/s", "times faster")
    figures: dict[str, Figure] = {}
    for name, compare in (
        ("TransformersEngine against model.generate", transformers),
        ("score, times faster than a padded loop", scoring),
        ("replay, times faster than generation", replaying),
        ("OpenAIEngine against the bare HTTP call", over_http),
        ("VLLMEngine against vllm.LLM", in_process),
    ):
        console.print(f"  {name} …", style="dim")
        ours, theirs = compare(path, folder, rounds)
        figures[name] = measure.times_faster(ours, theirs)
        cells = []
        for taken in map(statistics.median, (ours, theirs)):
            # Scored responses end where they end: their tokens are not those that are generated elsewhere.
            cells += [f"{taken:.3g}", "" if compare is scoring else f"{count * TOKENS / taken:,.0f}"]
        table.add_row(name.replace(", times faster than", " against"), *cells, f"{figures[name].median:.2f}")
    console.print(table)
    return Part(figures)


def alternating(pair: Pair, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of both in every round, taking turns in who is first, after one round that is not counted."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        both = list(zip(pair, taken, strict=True))
        for action, seconds in both if number % 2 else reversed(both):
            gc.collect()
            started = time.perf_counter()
            action()
            if number:
                seconds.append(time.perf_counter() - started)
    return taken


def chats() -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": question}] for question in QUESTIONS]


def params(**other: Any) -> Any:
    from rolltape.engines import SamplingParams

    return SamplingParams(n=GROUP, max_tokens=TOKENS, seed=1, ignore_eos=True, **other)


def transformers(path: str, folder: Path, rounds: int) -> tuple[list[float], list[float]]:
    """The same prompts, padded once outside the clock, with as many tokens."""
    from rolltape.engines import TransformersEngine

    engine = TransformersEngine(path, dtype="float32")
    tokenizer = engine.tokenizer
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    texts = [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats()
    ]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)

    def plain() -> object:
        found = engine.model.generate(
            **inputs, do_sample=True, temperature=1.0, top_p=1.0, top_k=0, num_return_sequences=GROUP,
            max_new_tokens=TOKENS, min_new_tokens=TOKENS, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        assert found.shape[1] == inputs["input_ids"].shape[1] + TOKENS
        return found

    return alternating((lambda: engine.generate(chats(), params()), plain), rounds)


def scoring(path: str, folder: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Groups of responses of different lengths, in rows of prompt and response padded to the longest."""
    import torch

    from rolltape.engines import TransformersEngine, score

    engine = TransformersEngine(path, dtype="float32")
    from rolltape.engines import SamplingParams

    rollout = engine.generate(chats(), SamplingParams(n=GROUP, max_tokens=2 * TOKENS, seed=1))
    model = engine.model

    def padded() -> list[Any]:
        found = []
        for start in range(0, len(rollout), GROUP):
            rows = range(start, min(start + GROUP, len(rollout)))
            whole = [torch.tensor([*rollout.prompt_ids[row], *rollout.response_ids[row]]) for row in rows]
            ids = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in whole], batch_first=True)
            with torch.no_grad():
                logits = model(input_ids=ids, attention_mask=mask).logits
            every = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
            for at, row in enumerate(rows):
                first = len(rollout.prompt_ids[row]) - 1
                found.append(every[at, first : first + len(rollout.response_ids[row])])
        return found

    for one, other in zip(score(model, rollout), padded(), strict=True):
        assert abs(torch.from_numpy(one) - other).max() < 1e-3, "not the same result"
    return alternating((lambda: score(model, rollout), padded), rounds)


def replaying(path: str, folder: Path, rounds: int) -> tuple[list[float], list[float]]:
    """One batch, generated and recorded, and replayed without an engine."""
    import rolltape
    from rolltape.engines import TransformersEngine

    engine = TransformersEngine(path, dtype="float32")
    taken: list[float] = []
    with rolltape.Tape(folder / "generation", mode="record") as tape:
        recording = tape.engine(engine)
        for step in range(rounds):
            started = time.perf_counter()
            with tape.step(step):
                recording.generate(chats(), params())
            taken.append(time.perf_counter() - started)
    replayed: list[float] = []
    with rolltape.Tape(folder / "generation", mode="replay") as tape:
        replaying = tape.engine(lambda: (_ for _ in ()).throw(AssertionError("an engine was started")))
        for step in range(rounds):
            started = time.perf_counter()
            with tape.step(step):
                replaying.generate(chats(), params())
            replayed.append(time.perf_counter() - started)
    return replayed, taken


def over_http(path: str, folder: Path, rounds: int) -> tuple[list[float], list[float]]:
    """The same requests to the same server, all at once, by a client that only reads the answers."""
    import httpx

    from rolltape.engines import OpenAIEngine
    from rolltape.engines.api.prompt import prepare
    from rolltape.engines.servers.vllm_dialect import VLLMDialect
    from tests.engines.servers import Process, free_port, vllm_command

    port = free_port()
    server = Process(vllm_command(path, port), port).start().wait()
    try:
        engine = OpenAIEngine(server.url)
        dialect, served = engine._connected()
        assert isinstance(dialect, VLLMDialect)
        ready = prepare(chats())
        requests = []
        for at, prompt in enumerate(ready):
            ids = dialect.encode(engine.server, served, prompt, at)
            requests += dialect.requests(served, prompt, ids, params(), at)

        async def bare() -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
                answers = await asyncio.gather(
                    *(client.post(request.path, json=request.body) for request in requests)
                )
            assert all(len(answer.json()["choices"]) == GROUP for answer in answers)

        return alternating((lambda: engine.generate(chats(), params()), lambda: asyncio.run(bare())), rounds)
    finally:
        server.kill()


def in_process(path: str, folder: Path, rounds: int) -> tuple[list[float], list[float]]:
    """The same ``LLM``, asked for the same with log-probs."""
    from vllm import SamplingParams

    from rolltape.engines import VLLMEngine
    from rolltape.engines.api.encoding import encode
    from rolltape.engines.api.prompt import prepare

    with VLLMEngine(path, dtype="float32", enforce_eager=True, max_model_len=512) as engine:
        inputs = [{"prompt_token_ids": encode(prompt, engine.tokenizer)} for prompt in prepare(chats())]
        wanted = SamplingParams(n=GROUP, max_tokens=TOKENS, seed=1, ignore_eos=True, logprobs=0)
        return alternating(
            (
                lambda: engine.generate(chats(), params()),
                lambda: engine.llm.generate(inputs, wanted, use_tqdm=False),
            ),
            rounds,
        )
