"""``Server``: JSON over HTTP to an inference server, with retries where they can help.

Knows nothing about the dialect of any server.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from rolltape.engines.api.libraries import library
from rolltape.errors import ConfigError, EngineError, EngineUnreachableError, PromptError

AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Status codes where a retry may help: too busy, starting up, or a failure of this request only."""
_FIRST, _LONGEST = 0.5, 30.0
_CONNECT = 10.0
"""Seconds to wait for a connection."""


def wait_before(attempt: int, retry_after: float | None, random: Callable[[], float]) -> float:
    """Seconds before retry 1, 2, …: what the server asks for, else doubling each time, with random jitter.

    >>> [wait_before(attempt, None, lambda: 1.0) for attempt in (1, 2, 3, 10)]
    [0.5, 1.0, 2.0, 30.0]
    >>> wait_before(1, 7.0, lambda: 1.0)
    7.0
    """
    grown = min(_LONGEST, _FIRST * 2.0 ** (attempt - 1))
    own = grown * (0.5 + random() / 2)  # so that clients refused together do not all retry together
    return retry_after or own


def parse_retry_after(value: str | None) -> float | None:
    """The header ``Retry-After`` in seconds, from either of its forms; None if it makes no sense.

    >>> parse_retry_after("3"), parse_retry_after("soon")
    (3.0, None)
    """
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            when = parsedate_to_datetime(value)
        except (TypeError, ValueError):
            return None
        if when.tzinfo is None:
            when = when.replace(tzinfo=timezone.utc)
        seconds = (when - datetime.now(timezone.utc)).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else None


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of one attempt."""

    answer: Any = None
    failure: EngineError | PromptError | None = None
    again: bool = False
    """Whether another attempt may help."""
    retry_after: float | None = None
    lost: bool = False
    """Whether the connection broke: the server may be a different one next time."""
    unknown: bool = False
    """Whether the server does not have this path."""


class Server:
    """A base URL with its connections. Thread-safe."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        concurrency: int = 64,
        timeout: float = 600.0,
        retries: int = 8,
        before_retry: Callable[[], None] | None = None,
        extra: str,
    ) -> None:
        """``timeout`` is per answer. ``before_retry`` runs before the retry after a lost connection."""
        if concurrency < 1 or retries < 0 or not timeout > 0:
            raise ConfigError(
                f"invalid options: concurrency={concurrency}, retries={retries}, timeout={timeout}",
                hint="concurrency must be at least 1, retries at least 0, and timeout above 0",
            )
        httpx = library("httpx", extra=extra, for_what="an engine on an HTTP server")
        self.url = base_url.rstrip("/").removesuffix("/v1")
        self.concurrency = concurrency
        self.timeout = timeout
        self.retries = retries
        self._before_retry = before_retry
        self._closed = threading.Event()
        self._failures: Any = httpx.TransportError
        self._slow: Any = httpx.TimeoutException
        self._client: Any = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout, connect=_CONNECT),
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        )

    def get(self, path: str, *, retry: bool = True) -> Any:
        """The answer to a GET request."""
        return self._ask("GET", path, None, "", retry)

    def post(self, path: str, body: Any = None, *, who: str = "", retry: bool = True) -> Any:
        """The parsed answer, ``None`` if it is empty. ``who`` names the prompt in errors: ``prompts[3]``."""
        return self._ask("POST", path, body, who, retry)

    def post_if_known(self, path: str) -> bool:
        """Post once; return whether the server has the path. Other failures are errors."""
        outcome = self._try("POST", path, None, "")
        if outcome.failure is not None and not outcome.unknown:
            raise outcome.failure
        return not outcome.unknown

    def get_if_there(self, path: str) -> Any:
        """The answer, or None if the server refuses for any reason."""
        try:
            return self.get(path)
        except EngineUnreachableError:
            raise
        except EngineError:
            return None

    def each(self, jobs: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """Run jobs in parallel, up to ``concurrency`` at a time; return the result or error of each."""
        if not jobs:
            return []
        with ThreadPoolExecutor(min(self.concurrency, len(jobs)), thread_name_prefix="rolltape-http") as pool:
            futures = [pool.submit(job) for job in jobs]
            try:
                errors = [future.exception() for future in futures]
            except BaseException:  # Ctrl-C: jobs that have not started are dropped
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        results: list[T | Exception] = []
        for future, error in zip(futures, errors, strict=True):
            if error is not None and not isinstance(error, Exception):
                raise error
            results.append(future.result() if error is None else error)
        return results

    def all(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """The same for what comes before sampling: raises the first error, since nothing is lost with it."""
        results = []
        for found in self.each(jobs):
            if isinstance(found, Exception):
                raise found
            results.append(found)
        return results

    def close(self) -> None:
        """Close the connections; calls that wait for a retry give up."""
        self._closed.set()
        self._client.close()

    # -- parts -----------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: Any, who: str, retry: bool) -> Any:
        attempt = 0
        while True:
            outcome = self._try(method, path, body, who)
            if outcome.failure is None:
                return outcome.answer
            if not (retry and outcome.again) or attempt >= self.retries:
                raise outcome.failure
            attempt += 1
            if self._closed.wait(wait_before(attempt, outcome.retry_after, random.random)):
                raise outcome.failure
            if outcome.lost and self._before_retry is not None:
                with contextlib.suppress(EngineUnreachableError):  # then this attempt fails too
                    self._before_retry()

    def _try(self, method: str, path: str, body: Any, who: str) -> _Outcome:
        try:
            response = self._client.request(method, path, **({} if body is None else {"json": body}))
        except self._slow as error:
            return self._lost(f"did not answer within {self.timeout:g} s", path, who, error)
        except self._failures as error:
            return self._lost(f"could not be reached or closed the connection: {error}", path, who, error)
        except RuntimeError as error:  # httpx, after close()
            return _Outcome(failure=EngineError(f"the engine is closed: {error}"))
        if response.status_code != 200:
            return _Outcome(
                failure=self._refused(response, path, who),
                again=response.status_code in AGAIN,
                retry_after=parse_retry_after(response.headers.get("retry-after")),
                unknown=response.status_code == 404,
            )
        try:
            return _Outcome(answer=json.loads(response.content) if response.content else None)
        except ValueError as error:
            return self._lost(f"sent something that is not JSON: {error}", path, who, error)

    def _lost(self, what: str, path: str, who: str, error: Exception) -> _Outcome:
        failure = EngineUnreachableError(
            f"{_for(who)}the server {what}",
            where=_where(who, f"{self.url}{path}"),
            causes=[
                "it is not running, still starting, or was restarted",
                "it is overloaded",
                "a wrong base_url",
            ],
            hint=f"check the server: curl {self.url}/health",
        )
        failure.__cause__ = error
        return _Outcome(failure=failure, again=True, lost=True)

    def _refused(self, response: Any, path: str, who: str) -> EngineError | PromptError:
        kind = PromptError if who and response.status_code in (400, 413, 422) else EngineError
        return kind(
            f"{_for(who)}the server answered {response.status_code}: {_message(response)}",
            where=_where(who, f"{self.url}{path}"),
        )


def _for(who: str) -> str:
    return f"prompt {who.partition('[')[2].partition(']')[0]}: " if who else ""


def _where(who: str, address: str) -> str:
    return f"{who}, {address}" if who else address


def _message(response: Any) -> str:
    """The server's error message: in OpenAI's form, FastAPI's, or the start of what it sent."""
    try:
        said = response.json()
    except ValueError:
        return str(response.text)[:300].strip() or response.reason_phrase
    if isinstance(said, dict):
        error = said.get("error", said)
        said = (error.get("message") or error.get("detail") or error) if isinstance(error, dict) else error
    return str(said)[:300]
