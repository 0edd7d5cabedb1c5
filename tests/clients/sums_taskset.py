"""A taskset of verifiers with a harness of its own: it asks, doubts the answer and asks again."""

import verifiers.v1 as vf
from openai import AsyncOpenAI


class Sum(vf.TaskData):
    answer: str


class SumTask(vf.Task[Sum]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.metric
    async def letters(self, trace) -> float:
        return float(len(trace.last_reply))


class Sums(vf.Taskset[SumTask]):
    def load(self):
        for first, second in ((2, 2), (3, 4)):
            data = Sum(prompt=f"What is {first}+{second}?", answer=str(first + second))
            yield SumTask(data, self.config.task)


class DoubtingConfig(vf.HarnessConfig):
    pass


class Doubting(vf.Harness[DoubtingConfig]):
    """Two turns in the process of the evaluation."""

    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        said = [{"role": "user", "content": data.prompt}]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as sdk:
            for doubt in ("Are you sure?", None):
                done = await sdk.chat.completions.create(model=ctx.model, messages=said)
                said.append({"role": "assistant", "content": done.choices[0].message.content})
                said.append({"role": "user", "content": doubt})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["Doubting", "Sums"]
