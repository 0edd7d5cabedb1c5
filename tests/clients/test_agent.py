"""An agent that calls a model in a loop with tools, and conversations that branch."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from openai import OpenAI

from tests.clients.serving import recording, replaying

WEATHER = {"Rome": "sunny", "Oslo": "snow", "Paris": "fog", "Berlin": "rain", "Madrid": "hot"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


def call(number: int, city: str) -> dict:
    function = {"name": "weather", "arguments": json.dumps({"city": city})}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"shown{number}", "type": "function", "function": function}],
    }


def question(city: str) -> dict:
    return {"role": "user", "content": f"What is the weather in {city}?"}


def shown() -> list[dict]:
    """Two examples, without which a model of this size would not call anything."""
    said = []
    for number, city in enumerate(("Rome", "Oslo")):
        told = {"role": "tool", "tool_call_id": f"shown{number}", "content": WEATHER[city]}
        said += [question(city), call(number, city), told]
        said.append({"role": "assistant", "content": f"{WEATHER[city]} in {city}."})
    return said


class Agent:
    """Asks, runs the tools that the model calls, and goes on until it answers in words."""

    def __init__(self, server, weather=WEATHER, session: str | None = None) -> None:
        path = f"/r/weather/{session}" if session else ""
        self.sdk = OpenAI(base_url=f"{server.url}{path}/v1", api_key="x", max_retries=0)
        self.weather = weather
        self.said = shown()

    def ask(self, message: dict) -> str:
        self.said.append(message)
        for _ in range(3):
            done = self.sdk.chat.completions.create(
                model="smollm2", messages=self.said, tools=TOOLS, temperature=0.5, max_tokens=32
            )
            answer = done.choices[0].message
            self.said.append(answer.model_dump(exclude_none=True))
            if not answer.tool_calls:
                return answer.content
            for one in answer.tool_calls:
                city = json.loads(one.function.arguments)["city"]
                told = self.weather.get(city, "unknown")
                self.said.append({"role": "tool", "tool_call_id": one.id, "content": told})
        return ""

    def branch(self) -> "Agent":
        """Another agent that goes on from here."""
        twin = object.__new__(Agent)
        twin.sdk, twin.weather, twin.said = self.sdk, self.weather, list(self.said)
        return twin


def converse(server) -> list[list[dict]]:
    """A conversation that branches twice after its first question."""
    trunk = Agent(server)
    trunk.ask(question("Paris"))
    left, right = trunk.branch(), trunk.branch()
    left.ask(question("Berlin"))
    right.ask(question("Madrid"))
    return [trunk.said, left.said, right.said]


def test_an_agent_with_tools_and_branches(tape, engine):
    with recording(tape, engine) as server:
        live = converse(server)
    called = [message for said in live for message in said[len(shown()) :] if message.get("tool_calls")]
    assert called, "the model called no function"
    with replaying(tape, engine) as server:
        assert converse(server) == live
    assert server.summary["unplayed"] == 0
    assert server.summary["levels"] == {
        "identity": 0, "conversation": server.summary["calls"]["replayed"], "content": 0
    }  # fmt: skip


def test_agents_at_once_each_in_a_session_of_its_own(tape, engine):
    """Equal questions at the same time; the path says whose they are, and every conversation is exact."""

    def all_at_once(server) -> list[list[dict]]:
        agents = [Agent(server, session=str(number)) for number in range(4)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda agent: agent.ask(question("Paris")), agents))
        return [agent.said for agent in agents]

    with recording(tape, engine) as server:
        live = all_at_once(server)
    with replaying(tape, engine) as server:
        assert all_at_once(server) == live
    levels = server.summary["levels"]
    assert levels["identity"] == server.summary["calls"]["replayed"] > 0
    assert levels["conversation"] == levels["content"] == 0


def test_a_tool_that_answers_otherwise_is_named(tape, engine):
    """Later bodies have what tools said in them: the miss says which message it was."""
    with recording(tape, engine) as server:
        live = Agent(server)
        live.ask(question("Paris"))
    [call] = [message for message in live.said[len(shown()) :] if message["role"] == "tool"][:1]
    assert call["content"] == "fog"
    with replaying(tape, engine, missed=1) as server:
        agent = Agent(server, weather=WEATHER | {"Paris": "frogs"})
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            agent.ask(question("Paris"))
    told = caught.value.response.json()["rolltape"]
    place = len(agent.said) - 1
    assert agent.said[place]["content"] == "frogs"
    assert told["differs"]["message"] == place
    assert (told["differs"]["recorded"], told["differs"]["asked"]) == ("fog", "frogs")
