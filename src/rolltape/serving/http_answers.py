"""Answers of our own: JSON, and errors in the form of the API that was asked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from aiohttp import web

from rolltape.serving.dialects import Dialect
from rolltape.serving.miss import Miss
from rolltape.serving.secrets import is_secret
from rolltape.serving.upstream import HOP_BY_HOP

_DROPPED = HOP_BY_HOP | {
    "date",
    "server",
    "set-cookie",
    "set-cookie2",
    "alt-svc",
    "strict-transport-security",
}

BROKEN_OFF = 502
"""What a client is told where the server behind could not be reached, or its answer broke off."""


def kept_answer_headers(headers: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """The headers of an answer that are passed back and kept."""
    return {name.lower(): value for name, value in headers if not _is_dropped(name)}


@lru_cache(maxsize=1024)
def _is_dropped(name: str) -> bool:
    return name.lower() in _DROPPED or is_secret(name)


def json_answer(status: int, document: Any) -> web.Response:
    """A document."""
    return web.Response(status=status, body=json.dumps(document).encode(), content_type="application/json")


def failure(status: int, dialect: Dialect | None, message: str, miss: Miss | None = None) -> web.Response:
    """An error. Clients are told not to try again, unless the server behind may be back by then."""
    details = miss.to_json() if miss is not None else {"reason": message}
    plain = {"error": {"message": message}, "rolltape": details}
    response = json_answer(status, dialect.error(message, details) if dialect else plain)
    if status != BROKEN_OFF:
        response.headers["x-should-retry"] = "false"
    return response


def break_off(request: web.BaseRequest) -> None:
    """End a connection in the middle of an answer, so that nobody takes it for a whole one."""
    if request.transport is not None:
        request.transport.abort()
