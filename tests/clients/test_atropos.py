"""An environment of Atropos makes its groups live, then from the tape with no engine."""

import asyncio
import json
from collections import Counter
from pathlib import Path

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig

from tests.clients.serving import recording, replaying


class Sums(BaseEnv):
    """Sums, a group for each: ``together`` asks for a group in one call, else every member asks by itself."""

    name = "sums"
    together = True

    async def setup(self):
        self.made = 0

    async def get_next_item(self):
        self.made += 1
        return {"question": f"What is {self.made}+{self.made}?", "answer": str(2 * self.made)}

    async def collect_trajectories(self, item):
        if not self.together:
            return await super().collect_trajectories(item)
        done = await self._ask(item, n=self.config.group_size)
        members = [self._scored(item, choice.message.content) for choice in done.choices]
        return {name: [member[name] for member in members] for name in members[0]}, []

    async def collect_trajectory(self, item):
        done = await self._ask(item, n=1)
        return self._scored(item, done.choices[0].message.content), []

    async def evaluate(self, *args, **kwargs):
        pass

    async def _ask(self, item, n):
        said = [{"role": "user", "content": item["question"]}]
        return await self.server.chat_completion(messages=said, n=n, max_tokens=10, temperature=1.0)

    def _scored(self, item, text):
        tokens = self.tokenizer.encode(text)
        return {"tokens": tokens, "masks": tokens, "scores": float(item["answer"] in text)}


class Apart(Sums):
    together = False


def groups(kind: type[Sums], server, file: Path, tokenizer_path: str) -> list[dict]:
    """Three groups of four, as the environment writes them into a file."""
    config = BaseEnvConfig(
        tokenizer_name=tokenizer_path, group_size=4, use_wandb=False, data_path_to_save_groups=str(file),
        ensure_scores_are_not_same=False,
    )  # fmt: skip
    where = APIServerConfig(
        model_name="smollm2", base_url=f"{server.url}/v1", api_key="x", health_check=False
    )

    async def run() -> None:
        env = kind(config, [where])
        env.n_groups_to_process, env.group_size_to_process = 3, 4
        await env.process_manager()

    asyncio.run(run())
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_groups_of_one_call_are_equal_in_every_token(tape, engine, tmp_path, tokenizer_path):
    with recording(tape, engine) as server:
        live = groups(Sums, server, tmp_path / "live.jsonl", tokenizer_path)
    assert len(live) == 3
    with replaying(tape, engine) as server:
        assert groups(Sums, server, tmp_path / "again.jsonl", tokenizer_path) == live
    assert server.summary["levels"] == {"identity": 0, "conversation": 0, "content": 3}


def test_groups_whose_members_ask_by_themselves_are_equal_as_groups(tape, engine, tmp_path, tokenizer_path):
    """Four equal bodies at once, without an id: nothing says who gets which, and the report says that."""

    def members(made: list[dict]) -> list[Counter]:
        return [Counter(zip(map(tuple, one["tokens"]), one["scores"], strict=True)) for one in made]

    with recording(tape, engine) as server:
        live = groups(Apart, server, tmp_path / "live.jsonl", tokenizer_path)
    with replaying(tape, engine) as server:
        again = groups(Apart, server, tmp_path / "again.jsonl", tokenizer_path)
    assert members(again) == members(live)
    assert server.summary["levels"] == {"identity": 0, "conversation": 0, "content": 12}
