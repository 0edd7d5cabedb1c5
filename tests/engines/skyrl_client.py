"""What SkyRL's generator does with its client, in a process that has SkyRL: URL MODEL; prints what it got."""

import asyncio
import json
import sys
import typing

import typing_extensions

# Pydantic wants this one before Python 3.12, and SkyRL has the other.
typing.TypedDict = typing_extensions.TypedDict

from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (  # noqa: E402
    RemoteInferenceClient,
)


async def main(url: str, model: str) -> None:
    prompts = [[40, 41], [42, 43, 44]]
    batch = {
        "prompt_token_ids": [prompt for prompt in prompts for _ in range(4)],
        "session_ids": [f"{number}_{repetition}" for number in range(2) for repetition in range(4)],
        "sampling_params": {"max_tokens": 6, "logprobs": 1, "temperature": 1.0},
    }
    got = []
    async with RemoteInferenceClient(
        proxy_url=url, server_urls=[url], data_parallel_size=1, model_name=model
    ) as client:
        for version in ("0", "1"):
            got.append(await client.generate({**batch, "cache_salt": version}))
            controlled = [await client.pause(), await client.reset_prefix_cache(), await client.resume()]
            got.append([list(answer.values()) for answer in controlled])
        got.append(await client.tokenize(["The quick brown"]))
    print(json.dumps(got))


asyncio.run(main(*sys.argv[1:]))
