"""RayEngine on a real Ray cluster of three nodes on loopback."""

import os
import signal
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from ray.cluster_utils import Cluster

from rolltape.engines import Engine, RayEngine, SamplingParams, TransformersEngine, mismatch
from rolltape.engines.api.prompt import Prompt
from rolltape.engines.ray.ray_engine import cost, renumbered, share_out
from rolltape.errors import ConfigError, EngineError, GenerationError, PromptError, WeightsError
from tests.listening import assert_ray_is_of_this_machine_alone

PROMPTS = [
    "The quick",
    [40, 41, 42],
    [{"role": "user", "content": "hi"}],
    "a b c",
    "One and one is two",
    [50] * 100,
]


@pytest.fixture(scope="module")
def cluster():
    root = str(Path(__file__).resolve().parents[2])  # an older Ray does not tell workers where `tests` is
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), root]))
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        for _ in range(2):
            made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def engine(cluster, tiny_path):
    with RayEngine(partial(TransformersEngine, tiny_path), 2, actor_options={"num_cpus": 1}) as made:
        yield made


@pytest.fixture
def single(tiny_path):
    return TransformersEngine(tiny_path)


def where(engine):
    """The process and node of each replica."""
    look = [
        r.__ray_call__.remote(lambda _: (os.getpid(), ray.get_runtime_context().get_node_id()))
        for r in engine.replicas
    ]
    return ray.get(look)


def stepped(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)


def same(one, other):
    return [ids.tolist() for ids in one.response_ids] == [ids.tolist() for ids in other.response_ids]


def test_nobody_but_this_machine_can_reach_the_cluster(cluster):
    assert_ray_is_of_this_machine_alone()


def test_replicas_on_two_nodes_give_what_one_engine_gives_in_the_order_asked(engine, single):
    places = where(engine)
    assert len({node for _, node in places}) == 2
    params = SamplingParams(n=4, max_tokens=20, seed=1, temperature=0.8)
    rollout, wanted = engine.generate(PROMPTS, params), single.generate(PROMPTS, params)
    assert rollout.uid == wanted.uid
    assert rollout.index.tolist() == wanted.index.tolist()
    assert same(rollout, wanted)
    assert mismatch(rollout, single.score(rollout)).max_abs < 5e-5
    scored = zip(engine.score(rollout), single.score(rollout), strict=True)
    assert max(np.abs(a - b).max() for a, b in scored) < 5e-5
    assert "transformers" in rollout.engine_version


def test_a_replica_killed_in_the_middle_of_a_batch_is_replaced_and_nothing_is_lost(engine, single):
    stepped(single.model, 1)
    engine.update_weights(single.model.state_dict(), version=3)
    params = SamplingParams(n=8, max_tokens=300, seed=1, ignore_eos=True)
    wanted = single.generate(PROMPTS, params)
    before = where(engine)
    begun = threading.Timer(0.2, os.kill, (before[0][0], signal.SIGKILL))
    begun.start()
    rollout = engine.generate(PROMPTS, params)
    begun.join()
    assert where(engine)[0][0] != before[0][0], "it was killed, and there is another"
    assert rollout.uid == wanted.uid
    assert same(rollout, wanted), "with the weights that were sent, not those it starts with"
    assert set(rollout.weights_versions) == {3}


def test_every_replica_follows_five_updates(engine, single):
    for version in range(1, 6):
        stepped(single.model, version)
        engine.update_weights(single.model.named_parameters(), version=version)
        rollout = engine.generate(PROMPTS, SamplingParams(n=2, max_tokens=8, seed=version))
        assert set(rollout.weights_versions) == {version}
        assert mismatch(rollout, single.score(rollout)).max_abs < 5e-5


def test_weights_that_do_not_fit_change_no_replica(engine, single):
    params = SamplingParams(temperature=0, max_tokens=8)
    before = engine.generate(PROMPTS, params)
    weights = {name: tensor + 1 for name, tensor in single.model.state_dict().items()}
    weights["model.norm.weight"] = weights["model.norm.weight"][:5]
    with pytest.raises(WeightsError, match=r"model\.norm\.weight"):
        engine.update_weights(weights)
    assert same(before, engine.generate(PROMPTS, params))
    assert engine.weights_version == 0


def test_a_prompt_that_is_refused_is_named_by_its_place_and_the_rest_is_kept(engine):
    prompts = [*PROMPTS, [5] * 600]
    with pytest.raises(GenerationError) as caught:
        engine.generate(prompts, SamplingParams(max_tokens=2, n=2))
    [(position, error)] = caught.value.failures.items()
    assert position == 6
    assert isinstance(error, PromptError)
    assert error.where == "prompts[6]"
    assert "prompt 6 has 600 tokens" in str(error)
    assert len(caught.value.rollout) == 2 * len(PROMPTS)


def test_what_every_replica_refuses_is_refused(engine):
    with pytest.raises(ConfigError, match="stop_token_ids"):
        engine.generate(PROMPTS, SamplingParams(stop_token_ids=[999]))


class Deadly(Engine):
    """Ends its process when it is asked to say `die`."""

    name, version = "deadly", "1"

    def _complete(self, prompts, params):
        if any(prompt.text == "die" for prompt in prompts):
            os._exit(1)
        return [
            EngineError(f"prompt {at} is not for me", where=f"prompts[{at}]") for at in range(len(prompts))
        ]


def test_a_prompt_that_kills_every_replica_that_tries_it_ends(cluster):
    with RayEngine(Deadly, 2, actor_options={"num_cpus": 1}, retries=1) as engine:
        with pytest.raises(GenerationError) as caught:
            engine.generate(["die", "other"], SamplingParams())
        assert "was lost" in str(caught.value.failures[0])
        assert str(caught.value.failures[1]).startswith("prompt 1 is not for me")
        assert caught.value.failures[1].where == "prompts[1]"


def failing():
    raise RuntimeError("there is no GPU here")


def test_a_factory_that_fails_says_why(cluster):
    with pytest.raises(EngineError, match="there is no GPU here"):
        RayEngine(failing, 1, actor_options={"num_cpus": 1})


@pytest.mark.parametrize("option", [{"replicas": 0}, {"replicas": 1, "retries": -1}])
def test_options_that_cannot_be(option):
    with pytest.raises(ConfigError, match=r"(replicas must be at least 1|retries must be at least 0), not"):
        RayEngine(TransformersEngine, **option)


def test_work_is_balanced_by_length_and_complete():
    costs = [100, 1, 1, 50, 49, 2, 97]
    shares = share_out(costs, 3)
    assert sorted(at for share in shares for at in share) == list(range(7))
    loads = [sum(costs[at] for at in share) for share in shares]
    assert max(loads) - min(loads) <= 5
    assert share_out([1], 3) == [[0]]
    params = SamplingParams(n=2, max_tokens=10)
    assert cost(Prompt(token_ids=[1] * 30), params) == 50


def test_errors_are_renumbered_for_the_whole_batch():
    error = PromptError("prompt 1 has 2 tokens", where="prompts[1].text")
    assert renumbered(error, [4, 7]).where == "prompts[7].text"
    assert str(error).startswith("prompt 7 has 2 tokens")
