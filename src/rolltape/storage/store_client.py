"""Requests to an object store: made per process, tried again with back-off until a deadline.

Every process has clients of its own. All tapes in one bucket share them, and they are made anew when the
environment's credentials change.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from rolltape.errors import ConfigError, MissingDependencyError
from rolltape.storage.aws_profile import profile_options
from rolltape.storage.client_library import client_library
from rolltape.storage.store_errors import Failure, Kind, explain, failure_of
from rolltape.storage.store_url import StoreUrl

T = TypeVar("T")

DEADLINE = "ROLLTAPE_STORE_DEADLINE"
TIMEOUT = "ROLLTAPE_STORE_TIMEOUT"
_DEFAULT = {DEADLINE: 120.0, TIMEOUT: 30.0}
_PREFIXES = (b"AWS_", b"GOOGLE_", b"AZURE_", b"STORAGE_EMULATOR_HOST", b"ROLLTAPE_STORE_")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_SLOW = 5.0
"""Seconds that the answer to a question may take, however short the deadline is."""
_CREDENTIALS_FOR = 5.0
"""Seconds for which an instance role that does not answer is asked again."""
_PAGE = 1000
"""Names in one answer to a listing."""
ATTEMPT = "rolltapeattempt"
"""The metadata of an object that says which attempt wrote it. Azure takes letters and digits only."""

_clients: dict[tuple[Any, ...], Any] = {}
_lock = threading.Lock()
_jitter = random.Random(os.urandom(8))  # its own: recording must not use up anyone's random numbers


def _fresh_lock() -> None:
    """In a forked child: the lock may have been held, and clients of the parent must not be touched."""
    global _lock
    _lock = threading.Lock()
    _kept_from_parent.append(dict(_clients))  # never dropped: their threads are not in this process
    _clients.clear()


_kept_from_parent: list[Any] = []
os.register_at_fork(after_in_child=_fresh_lock)


@dataclass(frozen=True, slots=True)
class Found:
    """What a store says about an object."""

    key: str
    size: int
    revision: str
    attempt: str | None = None
    """Who wrote it, where the answer says so."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One level of a listing."""

    objects: Sequence[Found]
    folders: Sequence[str]
    """Keys of folders, without a slash at the end."""


class Missing(Exception):
    """There is no such object."""


class Taken(Exception):
    """There is such an object already, or the object is not the one it was."""


class OutOfRange(Exception):
    """The range begins beyond the end of the object."""


def seconds(variable: str) -> float:
    """A time from the environment."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return _DEFAULT[variable]
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 10**7:
        raise ConfigError(
            f"{text!r} is not a number of seconds", where=f"environment variable {variable}", hint="write 120"
        )
    return value


class StoreClient:
    """The requests of one tape. Holds no connection and no credentials: those are per process."""

    def __init__(self, url: StoreUrl, deadline: float | None = None) -> None:
        self.url = url
        self.deadline = deadline
        """Seconds for which a request is tried; None as the environment says."""

    # -- requests ----------------------------------------------------------------------------------

    def put(self, key: str, chunks: Sequence[Any], *, new: bool, attempt: str) -> None:
        """Store an object; with ``new`` raises Taken where there is one by anybody else's attempt.

        One request, whatever the size: only that is atomic together with its condition. An answer may be
        lost after the store has acted, so who wrote what is there is asked before it counts as a conflict.
        """
        body: Any = chunks[0] if len(chunks) == 1 else list(chunks) or b""
        size = sum(map(len, chunks))

        def request(obs: Any, store: Any) -> None:
            mode = "create" if new else "overwrite"
            obs.put(store, key, body, mode=mode, use_multipart=False, attributes={ATTEMPT: attempt})

        try:
            self._tried(request, f"write {size} bytes", key, size=size, writing=True, on_condition=new)
        except Taken:
            if self._attempt_of(key) != attempt:
                raise

    def _attempt_of(self, key: str) -> str | None:
        try:
            return self.head(key).attempt
        except Missing:  # deleted since
            return None

    def head(self, key: str) -> Found:
        """What is known about an object without reading it."""

        def request(obs: Any, store: Any) -> Found:
            answer = obs.get(store, key, options={"head": True})
            return _found(key, answer.meta, answer.attributes)

        return self._tried(request, "look it up", key)

    def get(
        self,
        key: str,
        span: tuple[int, int] | None = None,
        revision: str | None = None,
        most: int | None = None,
    ) -> tuple[Found, bytes | None]:
        """An object, or the bytes from ``span[0]`` up to ``span[1]``, and what is known about it.

        With ``revision`` raises Taken where it is not that one. No bytes if they are more than ``most``.
        """
        options: dict[str, Any] = {}
        if span is not None:
            options["range"] = span
        return self._get(key, options, revision, most, span[1] - span[0] if span else None)

    def get_whole(self, key: str, revision: str | None, most: int) -> tuple[int, bytes | None]:
        """An object of up to ``most`` bytes, and how many it has; raises Taken if it is not that revision."""
        options = {} if revision is None else {"if_match": revision}

        def request(obs: Any, store: Any) -> tuple[int, bytes | None]:
            return _body(obs.get(store, key, options=options), most)

        return self._tried(request, "read it", key, on_condition=revision is not None)

    def get_end(self, key: str, length: int) -> tuple[Found, bytes]:
        """The last bytes of an object, at most ``length`` of them, and what is known about it."""
        if self.url.scheme == "az":  # has no ranges that count from the end
            return self._end_by_two(key, length)
        try:
            found, data = self._get(key, {"range": {"suffix": length}}, None, None, None)
        except OutOfRange:  # there are no last bytes of nothing
            return self._end_by_two(key, length)
        return found, data or b""

    def _end_by_two(self, key: str, length: int) -> tuple[Found, bytes]:
        while True:
            found = self.head(key)
            if found.size == 0 or length == 0:
                return found, b""
            try:
                return found, self.get(key, (max(found.size - length, 0), found.size), found.revision)[
                    1
                ] or b""
            except (Taken, OutOfRange):  # replaced since
                continue

    def _get(
        self, key: str, options: dict[str, Any], revision: str | None, most: int | None, size: int | None
    ) -> tuple[Found, bytes | None]:
        if revision is not None:
            options["if_match"] = revision

        def request(obs: Any, store: Any) -> tuple[Found, bytes | None]:
            answer = obs.get(store, key, options=options) if options else obs.get(store, key)
            return _found(key, answer.meta, answer.attributes), _body(answer, most)[1]

        return self._tried(request, "read it", key, size=size or 0, on_condition=revision is not None)

    def list_level(self, key: str) -> Listed:
        """What is directly in a folder. As many requests as there are pages."""

        def request(obs: Any, store: Any) -> Listed:
            answer = obs.list_with_delimiter(store, key or None)
            folders = [str(folder).rstrip("/") for folder in answer["common_prefixes"]]
            # Some stores show an empty object in the place of the folder itself.
            inside = [meta for meta in answer["objects"] if not key or meta["path"].startswith(f"{key}/")]
            return Listed([_found(meta["path"], meta) for meta in inside], folders)

        return self._tried(request, "list it", key)

    def list_all(self, key: str, after: str | None = None) -> Iterator[Found]:
        """Everything in a folder, however deep, or what comes ``after`` a key; page by page, sorted by name.

        A page that fails is asked for again from where the last one ended.
        """
        while True:
            page = self._tried(partial(_page, key, after), "list it", key)
            for meta in page:
                yield _found(meta["path"], meta)
            if len(page) < _PAGE:
                return
            after = page[-1]["path"]

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there are fine."""
        for start in range(0, len(keys), 1000):
            some = list(keys[start : start + 1000])

            def request(obs: Any, store: Any, some: list[str] = some) -> None:
                obs.delete(store, some[0] if len(some) == 1 else some)

            try:
                self._tried(request, "delete it", some[0], writing=True)
            except Missing:  # some stores say so
                for key in some if len(some) > 1 else ():
                    self.delete([key])

    # -- trying ------------------------------------------------------------------------------------

    def _tried(
        self,
        request: Callable[[Any, Any], T],
        doing: str,
        key: str,
        *,
        size: int = 0,
        writing: bool = False,
        on_condition: bool = False,
    ) -> T:
        """The answer to a request that is made until it succeeds, is refused, or the deadline has passed."""
        started, pause = time.monotonic(), _FIRST_PAUSE
        limit = seconds(DEADLINE) if self.deadline is None else self.deadline
        limit += size / 1e6  # a large object is given its time
        # A store that takes a question and never answers is not waited for much longer than one that is away.
        patience = seconds(TIMEOUT)
        if self.deadline is not None and not size and not writing:
            patience = min(patience, max(self.deadline, _SLOW))
        while True:
            failure = None
            obstore = client_library(str(self.url))
            try:
                return request(obstore, _client(self.url, size, patience))
            except Exception as error:
                if isinstance(error, (MissingDependencyError, ConfigError)):
                    raise
                failure = failure_of(error)
            # Outside of the handler, so that what is raised does not carry obstore's error and its URL along.
            if failure.kind is Kind.MISSING:
                if doing.startswith(("read", "look", "delete")):
                    raise Missing(key)
                failure = Failure(Kind.NO_BUCKET, failure.said)  # nothing else can be missing
            if failure.kind is Kind.TAKEN:
                if on_condition:
                    raise Taken(key)
                failure = Failure(Kind.FINAL, failure.said)  # a lease on it, or whatever the store means
            if failure.kind is Kind.RANGE:
                raise OutOfRange(key)
            waited = time.monotonic() - started
            within = limit if failure.kind is Kind.PASSING else _CREDENTIALS_FOR
            passing = failure.kind in (Kind.PASSING, Kind.NO_CREDENTIALS)
            if not passing or waited + pause > within:
                raise self._explained(failure, doing, key, waited, writing)
            time.sleep(pause * _jitter.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _explained(self, failure: Failure, doing: str, key: str, waited: float, writing: bool) -> Exception:
        where = f"{self.url.scheme}://{self.url.bucket}/{key}"
        if failure.kind is Kind.PASSING:
            failure = Failure(failure.kind, f"{failure.said}, for {waited:.0f} seconds")
        return explain(failure, doing=doing, where=where, bucket=self.url.bucket, writing=writing)


def _page(key: str, after: str | None, obs: Any, store: Any) -> Sequence[Any]:
    for page in obs.list(store, key or None, offset=after, chunk_size=_PAGE):
        return list(page)
    return []


def _body(answer: Any, most: int | None) -> tuple[int, bytes | None]:
    """How many bytes an answer has, and which; not if they are more than ``most``."""
    start, stop = answer.range
    if most is not None and stop - start > most:
        return stop - start, None
    data = answer.bytes()
    if len(data) != stop - start:
        raise _CutShort(f"{len(data)} bytes of {stop - start}")
    return len(data), data.to_bytes()


class _CutShort(Exception):
    """The body of an answer had fewer bytes than its head said."""


def _found(key: str, meta: Mapping[str, Any], attributes: Mapping[str, Any] | None = None) -> Found:
    attempt = (attributes or {}).get(ATTEMPT)
    revision = meta.get("e_tag") or meta.get("version") or f"{meta['last_modified']:%Y%m%d%H%M%S%f}"
    return Found(key, int(meta["size"]), str(revision), None if attempt is None else str(attempt))


# -- clients -----------------------------------------------------------------------------------------


def _client(url: StoreUrl, size: int, timeout: float) -> Any:
    """The client of this process for a bucket, with time enough for a request of this many bytes."""
    while timeout < size / 1e6:
        timeout *= 4
    # As bytes, and by name first: to decode every name and value costs more than the rest of a small request.
    said = tuple(sorted((name, os.environb.get(name)) for name in os.environb if name.startswith(_PREFIXES)))
    wanted = (os.getpid(), url.scheme, url.bucket, timeout, said)
    client = _clients.get(wanted)
    if client is None:
        with _lock:
            client = _clients.get(wanted)
            if client is None:
                client = _clients[wanted] = _made(url, timeout)
    return client


def _made(url: StoreUrl, timeout: float) -> Any:
    from obstore.store import AzureStore, GCSStore, S3Store

    options: dict[str, Any] = {
        "timeout": timedelta(seconds=timeout),
        "connect_timeout": timedelta(seconds=min(timeout, 5)),
    }
    # Retries of single requests, pages of a listing among them; what they do not cure is tried again above.
    backoff = {"init_backoff": timedelta(seconds=0.05), "max_backoff": timedelta(seconds=1), "base": 2}
    retry: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=timeout), "backoff": backoff}
    if url.scheme == "s3":
        more = _s3_options(options)
        return S3Store(url.bucket, client_options=options, retry_config=retry, **more)
    if url.scheme == "gs":
        more = _gs_options(options)
        return GCSStore(url.bucket, client_options=options, retry_config=retry, **more)
    endpoint = os.environ.get("AZURE_STORAGE_ENDPOINT") or os.environ.get("AZURE_ENDPOINT") or ""
    if endpoint.startswith("http://") or os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() == "true":
        options["allow_http"] = True
    return AzureStore(url.bucket, client_options=options, retry_config=retry)


def _s3_options(options: dict[str, Any]) -> dict[str, Any]:
    endpoints = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    endpoint = next((value for name in endpoints if (value := os.environ.get(name))), "")
    more = profile_options(os.environ)
    if endpoint:
        more["endpoint"] = endpoint
    if str(more.get("endpoint", "")).startswith("http://"):  # who writes http:// means it
        options["allow_http"] = True
    if role := os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        more["metadata_endpoint"] = role.rstrip("/")
    return more


def _gs_options(options: dict[str, Any]) -> dict[str, Any]:
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if not emulator:
        return {}
    options["allow_http"] = True
    base = emulator if "://" in emulator else f"http://{emulator}"
    return {"base_url": base, "skip_signature": True}
