"""What a request asks for: who asks, what is to be generated, and the digests by which it is found again.

Pure. A body is digested without the fields that do not change what is generated (``volatile``); everything
else in it, model and sampling included, is part of the digest. Bodies are parsed no more often than needed:
one whose very bytes were recorded has the digests of that recording.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rolltape.serving.dialects import Dialect, Request, find
from rolltape.serving.request_path import Place
from rolltape.serving.secrets import digest_of, is_secret, without_secrets

SESSIONS = ("x-session-id", "x-rolltape-session", "x-correlation-id", "x-trajectory-id", "x-rollout-id")
"""Headers that say who asks; the first that is there counts."""

REQUEST_ID = "x-request-id"
RETRIES = "x-stainless-retry-count"
STEP = "x-rolltape-step"
WEIGHTS = "x-rolltape-weights"

MOST_PREFIXES = 256
TOKENS_EACH, LETTERS_EACH = 16, 64
"""How much of a prompt lies between two of its digests."""

LONGEST_NAME = 500


class BadBody(ValueError):
    """A body that is no JSON, or more of it than can be read."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The digests of a body."""

    body: bytes
    """Stands for all that changes what is generated."""
    prefixes: tuple[int, ...] = ()
    """Stand for the conversation up to each message, or for the prompt up to every so many tokens."""
    answered: bool = False
    """Whether the conversation has an answer of the model in it already."""
    checked: str = ""
    """Fields that do not change what is generated and should be the same, as JSON."""
    rules: str = ""
    """Stands for what was left out of the digests."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as far as it matters which recording answers it."""

    method: str
    path: str
    """Of the API: without what the client put in front of it."""
    query: str
    """Without secrets."""
    body: bytes
    raw: bytes
    """A digest of the body as it came."""
    keys: Keys
    dialect: Dialect | None = None
    session: str | None = None
    session_from: str = ""
    """Where the session was said: ``path``, ``header x-session-id``, ``body field``."""
    request_id: str | None = None
    retry: int = 0
    """How often the client has sent it before, as it says."""
    step: int | None = None
    """The step, where this very request says it."""
    weights: str | None = None
    """The version of the weights, where a header says it."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Those that may be written down."""


@dataclass(frozen=True, slots=True)
class Naming:
    """What identifies a request, and what of it does not count."""

    identity: tuple[str, ...] = ()
    """Further headers that say who asks; ``body.NAME`` for fields."""
    volatile: frozenset[str] = frozenset()
    """Further fields of a body that do not change what is generated."""

    @property
    def headers(self) -> tuple[str, ...]:
        return tuple(name.lower() for name in self.identity if not name.startswith("body."))

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(name.removeprefix("body.") for name in self.identity if name.startswith("body."))


PLAIN = Naming()
"""Nothing beyond what is known everywhere."""


def session_of(place: Place, headers: Mapping[str, str], body: Any, naming: Naming) -> tuple[str | None, str]:
    """Who asks, and where that was said: the path first, then headers, then fields of the body."""
    if place.session is not None:
        return place.session, "path"
    for name in (*naming.headers, *SESSIONS):
        if headers.get(name):
            return _named(name, headers[name]), f"header {name}"
    for name in naming.fields:
        if isinstance(body, Mapping) and isinstance(body.get(name), (str, int)):
            return _named(name, str(body[name])), f"body {name}"
    return None, ""


def _named(name: str, value: str) -> str:
    """Who asks, in words that may be written down: a key can tell clients apart."""
    return digest_of(value) if is_secret(name) else _text(value)


def request_id_of(headers: Mapping[str, str], body: Any) -> str | None:
    """What names this very request, where the client says it: a header, or vLLM's and SGLang's fields."""
    found = headers.get(REQUEST_ID)
    if not found and isinstance(body, Mapping):
        found = next((body[name] for name in ("request_id", "rid") if isinstance(body.get(name), str)), None)
    return _text(found) if found else None


def _text(name: str) -> str:
    """A name that can be written anywhere: headers may hold bytes that are no text, and thousands of them."""
    found = name.encode("utf-8", "backslashreplace").decode()
    return found if len(found) <= LONGEST_NAME else f"{found[:LONGEST_NAME]}… {digest_of(found)}"


def raw_digest(body: bytes) -> bytes:
    """Stands for the bytes of a body."""
    return hashlib.blake2b(body, digest_size=16).digest()


def parse_body(body: bytes) -> Any:
    """A body as JSON; ``BadBody`` says what is wrong with it."""
    try:
        return json.loads(body)
    except RecursionError:
        raise BadBody("the body is nested too deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise BadBody(f"the body is not JSON: {error}") from None


def keys_of(method: str, path: str, body: Any, naming: Naming) -> Keys:
    """The digests of a parsed body."""
    dialect = find(method, path)
    body = without_secrets(body, dialect.reads if dialect else ())  # keys change, and nothing with them
    request = dialect.request(body) if dialect and isinstance(body, dict) else None
    prefixes = tuple(_prefixes(request)) if request else ()
    answered = request is not None and any(map(_is_answer, request.messages or ()))
    checked = (
        {name: body[name] for name in sorted(dialect.checked | naming.volatile) if name in body}
        if dialect and isinstance(body, Mapping)
        else {}
    )
    return Keys(
        _digest(counted(dialect, body, naming)),
        prefixes,
        answered,
        canonical(checked).decode() if checked else "",
        rules_of(dialect, naming),
    )


def counted(dialect: Dialect | None, body: Any, naming: Naming) -> Any:
    """What of a body changes what is generated."""
    body = without_secrets(body, dialect.reads if dialect else ())
    left_out = _left_out(dialect, naming)
    if not isinstance(body, Mapping):
        return body
    return {name: value for name, value in body.items() if name not in left_out}


def rules_of(dialect: Dialect | None, naming: Naming) -> str:
    """Stands for what is left out of the digest of a body: other rules, other digests."""
    return _digest(sorted(_left_out(dialect, naming))).hex()[:12]


def _left_out(dialect: Dialect | None, naming: Naming) -> frozenset[str]:
    return naming.volatile | set(naming.fields) | (dialect.volatile if dialect else frozenset())


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(canonical(value), digest_size=16).digest()


def canonical(value: Any) -> bytes:
    """JSON whose bytes depend on nothing but the value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _prefixes(request: Request) -> Iterable[int]:
    """Digests of ever longer beginnings of what the model is given."""
    state = hashlib.blake2b(digest_size=8)
    for piece in pieces_of(request)[:MOST_PREFIXES]:
        state.update(canonical(piece) + b"\n")
        yield int.from_bytes(state.copy().digest(), "little", signed=True)


def pieces_of(request: Request) -> list[Any]:
    """What the model is given, in pieces that follow each other: messages, or parts of a prompt."""
    if request.messages is not None:
        return list(request.messages)
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt[at : at + LETTERS_EACH] for at in range(0, len(prompt), LETTERS_EACH)]
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return [prompt[at : at + TOKENS_EACH] for at in range(0, len(prompt), TOKENS_EACH)]
    return list(prompt) if isinstance(prompt, list) else [] if prompt is None else [prompt]


def _is_answer(message: Any) -> bool:
    if not isinstance(message, Mapping):
        return False
    return message.get("role") == "assistant" or message.get("type") in ("function_call", "reasoning")


def parse_step(text: str | None) -> int | None:
    """The step that a header says; ``BadBody`` where it is none."""
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadBody(f"{STEP}: {text[:40]!r} is not a step")
    return int(text)


def retries(headers: Mapping[str, str]) -> int:
    """How often the client says it has sent this before."""
    text = headers.get(RETRIES, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
