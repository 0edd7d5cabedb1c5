"""Every way in which a server can fail, in front of a real one: no prompt is lost, and nothing is made up."""

import threading

import pytest

from rolltape.engines import OpenAIEngine, Rollout, SamplingParams
from rolltape.engines.servers import http_client as retrying
from rolltape.errors import EngineError, EngineUnreachableError, GenerationError, PromptError
from tests.engines.proxy import Proxy
from tests.engines.servers import Process, free_port, llama_cpp_command, llama_cpp_server, vllm_server

PROMPTS = [[40 + at, 50, 60] for at in range(6)]
PARAMS = SamplingParams(n=2, max_tokens=6, seed=1)


@pytest.fixture
def proxy():
    made = Proxy(vllm_server().url)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Waits of hundredths of a second instead of seconds."""
    monkeypatch.setattr(retrying, "_FIRST", 0.01)


@pytest.fixture(scope="module")
def wanted():
    with OpenAIEngine(vllm_server().url) as engine:
        return [ids.tolist() for ids in engine.generate(PROMPTS, PARAMS).response_ids]


def engine_on(proxy, **options):
    return OpenAIEngine(proxy.url, **{"retries": 3, **options})


def once_for(position, fault):
    """A fault in the first answer to one prompt."""
    done = []

    def decide(number, path, body):
        if path == "/v1/completions" and body["prompt"] == PROMPTS[position] and not done:
            done.append(number)
            return fault
        return None

    return decide


def always_for(position, fault):
    return lambda number, path, body: fault if body.get("prompt") == PROMPTS[position] else None


@pytest.mark.parametrize(
    "fault",
    [
        (500, {}, "oops"),
        (429, {"retry-after": "0"}, '{"error": {"message": "slow down"}}'),
        (503, {}, ""),
        "drop",
    ],
    ids=["500", "429", "503", "dropped halfway"],
)
def test_what_passes_is_asked_again(proxy, wanted, fault):
    proxy.fault = once_for(2, fault)
    with engine_on(proxy) as engine:
        rollout = engine.generate(PROMPTS, PARAMS)
    assert [ids.tolist() for ids in rollout.response_ids] == wanted
    assert len(proxy.completions()) == len(PROMPTS) + 1


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ((500, {}, "oops"), EngineError, "answered 500: oops"),
        ((429, {}, '{"error": {"message": "slow down"}}'), EngineError, "answered 429: slow down"),
        ("drop", EngineUnreachableError, "closed the connection"),
        ((200, {}, "<html>"), EngineUnreachableError, "not JSON"),
    ],
    ids=["500", "429", "dropped halfway", "nonsense"],
)
def test_what_does_not_pass_fails_one_prompt_and_keeps_the_others(proxy, wanted, fault, kind, said):
    proxy.fault = always_for(2, fault)
    with engine_on(proxy) as engine:
        with pytest.raises(GenerationError, match="1 of 6 prompts failed") as caught:
            engine.generate(PROMPTS, PARAMS)
        error = caught.value
        assert list(error.failures) == [2]
        assert type(error.failures[2]) is kind
        assert said in str(error.failures[2])
        assert "prompts[2]" in error.failures[2].where
        assert [body["prompt"] for body in proxy.completions()].count(PROMPTS[2]) == 4
        proxy.fault = lambda *_: None
        whole = Rollout.join([error.rollout, engine.generate(error.prompts, PARAMS)])
    assert sorted(ids.tolist() for ids in whole.response_ids) == sorted(wanted)


def test_a_refusal_is_not_asked_again(proxy):
    proxy.fault = always_for(2, (401, {}, '{"error": "who are you?"}'))
    with engine_on(proxy) as engine, pytest.raises(GenerationError, match=r"401: who are you\?"):
        engine.generate(PROMPTS, PARAMS)
    assert len(proxy.completions()) == len(PROMPTS)


def test_a_slow_server_is_not_waited_for_forever(proxy):
    proxy.fault = always_for(2, "hold")
    with engine_on(proxy, timeout=2, retries=1) as engine, pytest.raises(GenerationError) as caught:
        engine.generate(PROMPTS, PARAMS)
    assert isinstance(caught.value.failures[2], EngineUnreachableError)
    assert "did not answer within 2 s" in str(caught.value.failures[2])
    assert len(caught.value.rollout) == 10


def spoiled(change):
    def answer(found):
        change(found["choices"])
        return found

    return answer


@pytest.mark.parametrize(
    ("change", "said", "where"),
    [
        (lambda choices: choices.pop(), "1 completions instead of 2", "prompts[2]"),
        (
            lambda choices: choices[1].update(logprobs=None),
            "no choices[1].logprobs",
            "prompts[2], choices[1].logprobs",
        ),
        (
            lambda choices: choices[0].pop("token_ids"),
            "no choices[0].token_ids",
            "prompts[2], choices[0].token_ids",
        ),
        (
            lambda choices: choices[0]["logprobs"]["token_logprobs"].pop(),
            "6 tokens, but no log-prob for token 5",
            "prompts[2], choices[0].logprobs.token_logprobs",
        ),
        (
            lambda choices: choices[0]["logprobs"]["token_logprobs"].__setitem__(1, None),
            "no log-prob for token 1",
            "prompts[2], choices[0].logprobs.token_logprobs",
        ),
    ],
    ids=["fewer completions", "no log-probs", "no token ids", "one too few", "one is null"],
)
def test_an_answer_that_lacks_something_names_prompt_and_field(proxy, change, said, where):
    proxy.fault = always_for(2, spoiled(change))
    with engine_on(proxy) as engine, pytest.raises(GenerationError) as caught:
        engine.generate(PROMPTS, PARAMS)
    assert said in str(caught.value.failures[2])
    assert caught.value.failures[2].where == where
    assert len(caught.value.rollout) == 10


def test_a_model_without_a_chat_template(proxy):
    said = "default chat template is no longer allowed, so you must provide a chat template"
    refused = (400, {}, f'{{"error": {{"message": "{said}"}}}}')
    proxy.fault = lambda number, path, body: refused if "messages" in body else None
    chat = [{"role": "user", "content": "Two and two?"}]
    with (
        engine_on(proxy) as engine,
        pytest.raises(PromptError, match=r"prompt 1: .* chat template") as caught,
    ):
        engine.generate([PROMPTS[0], chat], PARAMS)
    assert caught.value.where.startswith("prompts[1], ")
    assert not proxy.completions(), "nothing has run"


def test_no_more_requests_at_a_time_than_allowed(proxy):
    with engine_on(proxy, concurrency=2) as engine:
        engine.generate(PROMPTS, PARAMS)
    assert proxy.most == 2


def test_a_key_is_sent(proxy):
    with engine_on(proxy, api_key="k") as engine:
        engine.generate(PROMPTS[:1], PARAMS)
    assert proxy.keys == {"Bearer k"}


def test_a_server_of_another_kind_is_refused(proxy):
    proxy.fault = lambda number, path, body: (200, {}, '{"data": [{"id": "x", "owned_by": "openai"}]}')
    with engine_on(proxy) as engine, pytest.raises(EngineError, match="neither vLLM nor llama"):
        engine.generate(PROMPTS)


def test_a_server_killed_and_restarted_in_the_middle_of_a_batch_loses_no_prompt():
    """The lightest real server: it is back within seconds."""
    prompts = [f"{number} and {number} is" for number in range(8)]
    params = SamplingParams(n=1, max_tokens=8, temperature=0)
    shared = llama_cpp_server()
    port = free_port()
    server = Process(llama_cpp_command(port), port).start().wait()
    proxy = Proxy(server.url)
    killed = threading.Event()

    def kill_at_the_fourth(number, path, body):
        if len(proxy.completions()) >= 4 and not killed.is_set():
            killed.set()
            server.kill()
            server.start()

    proxy.fault = kill_at_the_fourth
    try:
        with OpenAIEngine(proxy.url, concurrency=2, retries=40) as engine:
            rollout = engine.generate(prompts, params)
        assert killed.is_set()
        assert len(proxy.completions()) > len(prompts), "something was under way when it died"
        assert [prompt.text for prompt in rollout.prompts] == prompts
        with OpenAIEngine(shared.url) as other:
            undisturbed = other.generate(prompts, params)
        assert [ids[0] for ids in rollout.response_ids] == [ids[0] for ids in undisturbed.response_ids]
    finally:
        proxy.close()
        server.kill()
