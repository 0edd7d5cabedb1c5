"""The control plane of an inference server: weights, pauses, caches, health. Which paths belong to it.

Names as vLLM, SGLang, TRL's vllm-serve, SkyRL, prime-rl, AReaL and slime's router have them; a trailing slash
makes no difference, and neither does a leading ``/v1``.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolltape.serving.lookup import Slot

QUESTIONS = ("GET", "HEAD")
"""Methods that change nothing: their answers are the state of an engine at that time."""

_STATE = (
    "health health_generate ready ping version models get_model_info model_info get_server_info server_info "
    "server_config get_world_size metrics load get_load workers list_workers is_sleeping is_paused "
    "get_weights_by_name weights_checker weight_checker weight_info get_internal_state world_size"
).split()
_ACTIONS = (
    "pause resume sleep wake_up pause_generation continue_generation abort_request abort_requests "
    "flush_cache reset_prefix_cache reset_mm_cache reset_encoder_cache load_lora_adapter unload_lora_adapter "
    "start_profile stop_profile release_memory_occupation resume_memory_occupation slow_down "
    "add_worker remove_worker collective_rpc scale_elastic_ep is_scaling_elastic_ep"
).split()
_WEIGHTS = (
    "update_weights update_weights_from_disk update_weights_from_distributed update_weights_from_tensor "
    "update_weights_from_ipc update_named_param batch_update_named_params update_weight_version "
    "update_weight "
    "load_weights reload_weights update_flattened_params finish_weight_update start_weight_update "
    "areal_update_weights areal_update_weights_lora areal_update_weights_xccl areal_set_update_weight_meta"
).split()
_GROUPS = (
    "init_communicator close_communicator init_weight_transfer_engine init_weights_update_group "
    "destroy_weights_update_group init_broadcaster init_weights_send_group_for_remote_instance "
    "areal_init_weights_update_group post_process_weights"
).split()

_KNOWN = frozenset([*_STATE, *_ACTIONS, *_WEIGHTS, *_GROUPS])
_UPDATES = re.compile(rf"(?:{'|'.join(_WEIGHTS)})|load_lora_adapter")


def is_control(path: str) -> bool:
    """Whether a path belongs to the control plane.

    >>> is_control("/update_weights_from_disk"), is_control("/v1/models/"), is_control("/v1/completions")
    (True, True, False)
    """
    return _last(path) in _KNOWN


def updates_weights(path: str) -> bool:
    """Whether a request to this path gives an engine other weights."""
    return _UPDATES.fullmatch(_last(path)) is not None


def is_health(path: str) -> bool:
    """Whether a path asks if a server is there."""
    return _last(path) in ("health", "health_generate", "ready", "ping")


def is_measure(path: str) -> bool:
    """Whether a path tells numbers that are others at every moment, and that nothing waits for."""
    return _last(path) in ("metrics", "load", "get_load")


def _last(path: str) -> str:
    return path.strip("/").removeprefix("v1/")


class Changes:
    """How far a replay is in what was recorded of the control plane: a question is answered as of then."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._arrivals = sorted(slot.arrival for slot in slots if slot.target.split()[0] not in QUESTIONS)
        self._reached = 0
        """How many of them lie behind."""

    def reach(self, slot: Slot) -> None:
        """A request that changed something is made again."""
        self._reached = max(self._reached, bisect_right(self._arrivals, slot.arrival))

    def last(self, slots: Sequence[Slot], step: int) -> Slot | None:
        """What a question was told last before the change that comes next; the first answer before all."""
        ahead = self._reached < len(self._arrivals)
        before = self._arrivals[self._reached] if ahead else math.inf
        past = [slot for slot in slots if slot.step <= step and slot.arrival < before]
        return past[-1] if past else next(iter(slots), None)
