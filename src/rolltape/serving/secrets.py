"""What never reaches a tape: keys, cookies, tokens. Headers are kept by a list, everything else is not.

A body is kept as it came, but for fields that are a secret by their name, wherever they are in it: those are
replaced. What the model reads is data and stays, and so do fields that describe one, as in a tool's schema.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

HIDDEN = "***"

_KEPT = re.compile(
    r"accept|content-type|user-agent|traceparent|x-stainless-(?:retry-count|lang|package-version)"
    r"|(?:x-)?(?:session|request|trajectory|rollout|task|episode|correlation|group|instance)-?(?:id|index)"
    r"|x-rolltape-(?:session|step|weights)|openai-(?:model|version|processing-ms)|anthropic-(?:version|beta)",
    re.IGNORECASE,
)
"""Names of headers that say who asks, or in which form."""

_SECRET = re.compile(
    r"(?:.*[-_.])?(?:api[-_]?key|apikey|secret|token|password|passwd|credentials?|authorization|auth|cookie)"
    r"(?:[-_]?(?:key|id))?",
    re.IGNORECASE,
)
_WORDS = re.compile(rb"key|token|secret|passw|auth|cookie|credential", re.IGNORECASE)
_NOT_SECRET = re.compile(
    r"(?:max|min|stop|bad|eos|bos|pad|n|num|return|skip|allowed|ignore|logit)[-_].*", re.I
)


def kept_headers(headers: Iterable[tuple[str, str]], also: Iterable[str] = ()) -> dict[str, str]:
    """The headers that may be written down.

    >>> kept_headers([("Authorization", "Bearer x"), ("X-Session-ID", "7"), ("Cookie", "a=b")])
    {'x-session-id': '7'}
    """
    named = frozenset(name.lower() for name in also)
    kept = ((_kept_as(name, named), value) for name, value in headers)
    return {name: value for name, value in kept if name is not None}


@lru_cache(maxsize=1024)
def _kept_as(name: str, named: frozenset[str]) -> str | None:
    """What a header is called on the tape; None for one that is not written down."""
    lower = name.lower()
    return lower if (_KEPT.fullmatch(name) or lower in named) and not is_secret(name) else None


def is_secret(name: str) -> bool:
    """Whether a header, a field or a parameter is a secret by its name.

    >>> [is_secret(name) for name in ("api_key", "X-Auth-Token", "max_tokens", "stop_token_ids")]
    [True, True, False, False]
    """
    return _SECRET.fullmatch(name) is not None and _NOT_SECRET.fullmatch(name) is None


def may_hold_secrets(body: bytes) -> bool:
    """Whether a word of a secret is in a body at all; most have none."""
    return _WORDS.search(body) is not None


def without_secrets(body: Any, data: Collection[str] = ()) -> Any:
    """The body without the values of secret fields; the very same object where it has none.

    ``data`` are the fields that a model reads.

    >>> without_secrets({"api_key": "a", "tools": [{"X-Token": "b"}], "prompt": {"token": "c"}}, ["prompt"])
    {'api_key': '***', 'tools': [{'X-Token': '***'}], 'prompt': {'token': 'c'}}
    """
    if isinstance(body, list):
        found = [without_secrets(item) for item in body]
        return found if any(a is not b for a, b in zip(body, found, strict=True)) else body
    if not isinstance(body, Mapping):
        return body
    safe = {
        name: value if name in data
        else HIDDEN if isinstance(value, str) and value != HIDDEN and is_secret(name)
        else without_secrets(value)
        for name, value in body.items()
    }  # fmt: skip
    return safe if any(safe[name] is not value for name, value in body.items()) else body


def digest_of(secret: str) -> str:
    """Stands for a secret where it has to be told from others."""
    return "sha256:" + hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def safe_query(query: str) -> str:
    """A query without the values of secret parameters.

    >>> safe_query("api_key=abc&n=2")
    'api_key=%2A%2A%2A&n=2'
    """
    if not query:
        return query
    pairs = parse_qsl(query, keep_blank_values=True, errors="surrogateescape")
    if not any(is_secret(name) or name == "key" for name, _ in pairs):
        return query
    return urlencode([(name, HIDDEN if is_secret(name) or name == "key" else value) for name, value in pairs])


def safe_url(url: str) -> str:
    """An address without the name and password in it.

    >>> safe_url("http://me:pw@host:1/v1?api_key=abc")
    'http://host:1/v1?api_key=%2A%2A%2A'
    """
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=safe_query(parts.query)))
