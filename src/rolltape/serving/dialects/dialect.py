"""What every API has in common: a request, an answer of choices, an error, and fields that change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rolltape.serving.dialects.event_stream import read_events, whole_json
from rolltape.serving.dialects.json_fields import count, mapping, text, versions

CHECKED = frozenset(
    """cache_salt extra_key priority service_tier speed stream_interval stream_options""".split()
)
"""Those of them that are reported if they differ: the version of a policy that is sent as a salt, or how
an answer is cut into events."""

VOLATILE = CHECKED | frozenset(
    """
    user metadata store safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options
    request_id rid session_id conversation_id routing_key
    kv_transfer_params ec_transfer_params bootstrap_host bootstrap_port bootstrap_room bootstrap_pair_key
    decode_tp_size data_parallel_rank routed_dp_rank disagg_prefill_dp_rank
    need_wait_for_mm_inputs num_items_assigned encoder_urls
    http_worker_ipc external_trace_header received_time custom_labels log_metrics no_logs
    mm_payload return_mm_kwargs return_token_offsets
    cache_control diagnostics inference_geo user_profile_id workspace_id fallback_credit_token
    """.split()
)
"""Fields of a body that do not change what is generated: whose it is, where it runs, what is cached."""

NONE = type(None)
WEIGHTS = ("weight_version", "lora_path")
"""Fields in which a request names the version of the policy."""

NAMED: dict[str, tuple[type, ...]] = {"model": (str, NONE), "stream": (bool, NONE)}
NAMED |= dict.fromkeys(WEIGHTS, (str, int))
"""Fields that have a name of their own in a `Request`, if they are what they should be."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to one prompt."""

    text: str | None = None
    token_ids: list[int] | None = None
    logprobs: list[float | None] | None = None
    """One for each of `token_ids`, of the token that was sampled."""
    finish_reason: str | None = None
    message: Any = None
    """JSON as a client appends it to the conversation, tool calls included."""
    routed_experts: Any = None
    prompt_ids: list[int] | None = None
    """Of the prompt that this choice answers, where the answer says it for each."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked. Each field of the body is in one of these, or volatile."""

    messages: list[Any] | None = None
    """The conversation, oldest first, what the system says in front."""
    prompt: Any = None
    """Text, token ids, or a list of either; None where there are messages."""
    prompt_ids: list[int] | None = None
    """Where the prompt is one list of token ids."""
    model: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    """Everything else that changes what is generated, or the form of the answer."""
    n: int = 1
    stream: bool = False
    weights: str | None = None
    context: dict[str, Any] = field(default_factory=dict)
    """What else the model is given to read: tools, images, an earlier response by its id."""


@dataclass(frozen=True, slots=True)
class Response:
    """What was answered."""

    choices: list[Choice] = field(default_factory=list)
    prompt_ids: list[int] | None = None
    model: str | None = None
    weights: str | None = None
    usage: Any = None


class Dialect:
    """One endpoint of one API."""

    name: ClassVar[str]
    volatile: ClassVar[frozenset[str]] = VOLATILE
    checked: ClassVar[frozenset[str]] = CHECKED
    prompt_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that become `messages`, `prompt` or `prompt_ids`."""
    context_fields: ClassVar[frozenset[str]] = frozenset()

    @property
    def reads(self) -> frozenset[str]:
        """Fields that are data, whatever is written in them: the model reads them."""
        return self.prompt_fields

    def for_body(self, body: Any) -> Dialect:
        """The dialect of this very request, where servers of several kinds share a path."""
        return self

    def request(self, body: Any) -> Request:
        """What a body asks for."""
        fields = mapping(body)
        messages, prompt, prompt_ids = self.asked(fields)
        named = {name for name, kinds in NAMED.items() if type(fields.get(name)) in kinds}
        elsewhere = self.prompt_fields | self.context_fields | self.volatile | named
        sampling = self.flattened({name: fields[name] for name in fields if name not in elsewhere})
        return Request(
            messages=messages,
            prompt=prompt,
            prompt_ids=prompt_ids,
            model=text(fields.get("model")),
            sampling=sampling,
            n=count(sampling.get("n")),
            stream=fields.get("stream") is True,
            weights=versions(fields[name] for name in WEIGHTS if name in named),
            context={name: fields[name] for name in fields if name in self.context_fields},
        )

    def asked(self, fields: Mapping[str, Any]) -> tuple[list[Any] | None, Any, list[int] | None]:
        """Messages, prompt and token ids of the prompt."""
        raise NotImplementedError

    def flattened(self, sampling: dict[str, Any]) -> dict[str, Any]:
        """Sampling parameters that an API keeps in a dict of their own, as fields of the body."""
        return sampling

    def response(self, body: Any) -> Response:
        """What a JSON answer says."""
        raise NotImplementedError

    def streamed(self, body: bytes) -> Response:
        """What a stream says, put together; of a part of one, what is there."""
        whole = whole_json(body)
        return self.response(self.assembled(read_events(body)) if whole is None else whole)

    def assembled(self, events: Iterable[Any]) -> Any:
        """The JSON answer that has the same content as the events of a stream."""
        raise NotImplementedError

    def error(self, message: str, rolltape: dict[str, Any]) -> dict[str, Any]:
        """An error in the form of this API."""
        detail = {"message": message, "type": "invalid_request_error", "param": None}
        return {"error": {**detail, "code": text(rolltape.get("kind"))}, "rolltape": rolltape}


def nested(sampling: dict[str, Any], name: str) -> dict[str, Any]:
    """Sampling parameters with those of an inner dict beside them, unless that would hide one."""
    inner = sampling.get(name)
    outer = {key: value for key, value in sampling.items() if key != name}
    if not isinstance(inner, dict) or inner.keys() & outer.keys():
        return sampling
    return {**outer, **inner}
