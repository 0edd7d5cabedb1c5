"""Lets verl's real trainer run without an accelerator. Loaded by verl: VERL_USE_EXTERNAL_MODULES names it.

Registers a platform `cpu` (gloo; Ray is told of a GPU that does not exist) and a rollout engine `tiny`: a Ray
actor that samples with transformers, one request after the other, and writes down what it was asked to do.
"""

import contextlib
import functools
import hashlib
import json
import os
from types import ModuleType

import ray
import torch
import verl.utils.distributed
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

JOURNAL = "ROLLTAPE_TEST_JOURNAL"
"""Where the engine writes a line per event; the variable is inherited by Ray's workers."""


class CpuModule(ModuleType):
    """Where verl expects `torch.cuda`: what torch.cpu lacks is zero bytes, or does nothing."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        answers = {"mem_get_info": (1 << 33, 1 << 34), "get_device_name": "cpu"}
        answer = answers.get(name, 0 if "memory" in name else None)
        return lambda *args, **kwargs: answer


DEVICE = CpuModule("rolltape_cpu_device")


def _nothing(self, *args, **kwargs):
    return None


@PlatformRegistry.register("cpu")
class CpuPlatform(PlatformBase):
    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: DEVICE)

    set_device = synchronize = empty_cache = set_allocator_settings = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def is_available(self):
        return True

    def is_platform_available(self, use_smi_check=False):
        return True

    def current_device(self):
        return "cpu"

    def device_count(self):
        return 1

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg):
        yield

    def ray_resource_name(self):
        return "GPU"

    def ray_resource_options(self, count):
        return {"num_gpus": count}

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False


# verl asks for "cpu:gloo,cpu:gloo" here, which torch refuses.
verl.utils.distributed.initialize_global_process_group_ray = functools.partial(
    verl.utils.distributed.initialize_global_process_group_ray, backend="cpu:gloo"
)


def note(**event):
    with open(os.environ[JOURNAL], "a") as journal:
        journal.write(json.dumps(event) + "\n")


class TinyEngine:
    """What verl's agent loops talk to: token ids in, token ids and log-probs out."""

    def __init__(self, path, longest, seed):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.end = self.model.config.eos_token_id
        self.longest = longest
        self.version = None
        self.random = torch.Generator().manual_seed(seed)

    async def generate(self, request_id, prompt_ids, sampling_params, **rest):
        note(event="generate", version=self.version)
        tokens, log_probs = self._sample(list(prompt_ids), sampling_params.get("temperature", 1.0) or 1.0)
        return TokenOutput(
            token_ids=tokens,
            log_probs=log_probs if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            extra_fields={"global_steps": self.version},
        )

    @torch.no_grad()
    def _sample(self, prompt, temperature):
        tokens, log_probs, cache = [], [], None
        following = torch.tensor([prompt])
        while len(tokens) < self.longest and (not tokens or tokens[-1] != self.end):
            out = self.model(input_ids=following, past_key_values=cache, use_cache=True)
            scores = torch.log_softmax(out.logits[0, -1].float() / temperature, dim=-1)
            choice = torch.multinomial(scores.exp(), 1, generator=self.random)
            tokens.append(int(choice))
            log_probs.append(float(scores[choice]))
            cache, following = out.past_key_values, choice[None]
        return tokens, log_probs

    async def load(self, weights, version):
        self.model.load_state_dict(weights, strict=False)
        self.version = version
        digest = hashlib.sha256()
        for name in sorted(weights):
            digest.update(name.encode() + weights[name].contiguous().numpy().tobytes())
        note(event="weights", version=version, sha256=digest.hexdigest())

    async def _idle(self, *args, **kwargs):
        return None

    wake_up = sleep = abort_all_requests = resume_generation = clear_kv_cache = release_kv_cache = _idle
    resume_kv_cache = start_profile = stop_profile = set_global_steps = _idle


class TinyReplica(RolloutReplica):
    async def launch_servers(self):
        name = _engine_name(self.replica_rank)
        options = {"name": name, "num_cpus": 0.1, "max_concurrency": self.max_concurrency}
        seed = self.config.seed + self.replica_rank
        engine = ray.remote(TinyEngine).options(**options)
        handle = engine.remote(self.model_config.path, self.config.response_length, seed)
        self.servers, self._server_handle, self._server_address = [handle], handle, name
        await handle.sleep.remote()


class TinyRollout(BaseRollout):
    """The side of the training worker: hands its weights to the engine."""

    async def resume(self, tags):
        return None

    async def release(self):
        return None

    async def update_weights(self, weights, global_steps=None, **rest):
        copies = {name: tensor.detach().cpu().float().clone() for name, tensor in weights}
        await ray.get_actor(_engine_name(torch.distributed.get_rank())).load.remote(copies, global_steps)


def _engine_name(rank):
    return f"tiny_engine_{rank}"


_ROLLOUT_REGISTRY[("tiny", "async")] = "rolltape_cpu_platform.TinyRollout"
RolloutReplicaRegistry.register("tiny", lambda: TinyReplica)
