"""What the error of an object store means: pure decisions on its text, of which nothing secret is repeated.

The text of obstore's errors has the URL of the request, and with it the signature of a SAS token. So neither
the text nor the error itself goes into ours: only the status, the store's own code word and the kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from rolltape.errors import RolltapeError, StorageError, StoreUnreachableError, TapeReadOnlyError

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9_.]{1,60})</Code>")
_JSON_REASON = re.compile(r'"reason"\s*:\s*"([A-Za-z0-9_]{1,60})"')
_OF_A_KEY = re.compile(r"request failed for key .*\(code: ([A-Za-z0-9_.]{1,60})\)$", re.MULTILINE)
"""How a request to delete says what became of one key, though it was itself answered with 200."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_DENIED = "AccessDenied"
_BUSY = ("ConditionalRequestConflict", "OperationAborted")
"""Another request for the object is under way: whether it is taken is known when that has ended."""
_RANGE = ("Wanted range starting at", "Range started at")
_METADATA = ("169.254.169.254", "fd00:ec2::254", "metadata.google.internal", "metadata/identity")


class Kind(Enum):
    """What to do about an error."""

    MISSING = "there is no such object"
    NO_BUCKET = "the bucket does not exist"
    TAKEN = "there is such an object already, or it is another one"
    DENIED = "it is not allowed"
    NO_CREDENTIALS = "there are no credentials"
    RANGE = "the range is beyond the end"
    TOO_LARGE = "the object is too large for one request"
    PASSING = "it may work a moment later"
    FINAL = "it will not work later either"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed request, as it may be shown."""

    kind: Kind
    said: str
    """The status and the code word, or what failed."""


def failure_of(error: BaseException) -> Failure:
    """What an error of obstore means. Goes by the class's name: obstore need not be imported to ask."""
    name, text = type(error).__name__, str(error)
    status = int(found[1]) if (found := _STATUS.search(text)) else None
    code = found[1] if (found := _CODE.search(text) or _JSON_REASON.search(text)) else ""
    if found := _OF_A_KEY.search(text):
        status, code = (int(found[1]), "") if found[1].isdecimal() else (None, found[1])
    said = " ".join(filter(None, [f"status {status}" if status else "", code])) or _plain(name, text)
    # By the status too: what fails after obstore has tried again by itself is a GenericError, whatever it is.
    if isinstance(error, FileNotFoundError) or name == "NotFoundError" or status == 404:
        no_bucket = any(sign in text for sign in _NO_BUCKET)
        return Failure(Kind.NO_BUCKET if no_bucket else Kind.MISSING, said)
    if any(sign in text for sign in _NO_BUCKET):
        return Failure(Kind.NO_BUCKET, said)
    if code in _BUSY:  # obstore calls that AlreadyExistsError too
        return Failure(Kind.PASSING, said)
    if name in ("AlreadyExistsError", "PreconditionError", "NotModifiedError") or status == 412:
        return Failure(Kind.TAKEN, said)
    if name in ("PermissionDeniedError", "UnauthenticatedError") or status in (401, 403) or code == _DENIED:
        return Failure(Kind.DENIED, said)
    if any(sign in text for sign in _METADATA):
        return Failure(Kind.NO_CREDENTIALS, "no credentials in the environment, and no instance role answers")
    if status == 416 or any(sign in text for sign in _RANGE):
        return Failure(Kind.RANGE, said)
    if status == 413 or code == "EntityTooLarge":
        return Failure(Kind.TOO_LARGE, said)
    if name in (
        "NotSupportedError",
        "InvalidPathError",
        "UnknownConfigurationKeyError",
        "ValueError",
        "TypeError",
    ):
        return Failure(Kind.FINAL, said)
    if status is not None and 400 <= status < 500 and status not in (408, 409, 425, 429):
        return Failure(Kind.PASSING if code in ("RequestTimeout", "SlowDown") else Kind.FINAL, said)
    return Failure(Kind.PASSING, said)


def _plain(name: str, text: str) -> str:
    """What failed, where no answer came."""
    for sign, said in (
        ("timed out", "no answer in time"), ("TimedOut", "no answer in time"),
        ("Timeout", "no answer in time"),
        ("Connect", "no connection"), ("dns error", "the host is not known"),
        ("Body", "the answer was cut off"), ("Decode", "the answer was cut off"),
        ("error sending request", "the connection was lost"),
    ):  # fmt: skip
        if sign in text:
            return said
    return name


def explain(failure: Failure, *, doing: str, where: str, bucket: str, writing: bool) -> RolltapeError:
    """Our error for a request that failed for good."""
    if failure.kind is Kind.NO_BUCKET:
        return StorageError(
            f"could not {doing}: there is no bucket or container {bucket!r} ({failure.said})",
            where=where,
            causes=["its name is misspelt", "AWS_ENDPOINT_URL, or the account, is that of another store"],
            hint="make it with the tools of your store; Rolltape makes no buckets",
        )
    if failure.kind is Kind.NO_CREDENTIALS:
        return StorageError(
            f"could not {doing}: {failure.said}",
            where=where,
            causes=["this process does not have the variables your shell has"],
            hint="set the credentials of the store in the environment; docs/stores.md lists the variables",
        )
    if failure.kind is Kind.DENIED:
        kind = TapeReadOnlyError if writing else StorageError
        return kind(
            f"could not {doing}: the store does not allow it ({failure.said})",
            where=where,
            causes=[
                "the credentials are wrong, have expired, or lack this permission",
                "the clock of this machine is off by minutes",
                "the object is not there, and listing is not allowed: some stores then say this",
            ],
            hint="try the same with the tools of your store; docs/stores.md lists what Rolltape needs",
        )
    if failure.kind is Kind.TOO_LARGE:
        return StorageError(
            f"could not {doing}: it is larger than the store takes in one request ({failure.said})",
            where=where,
            hint="record fewer samples in one step, or in shards: a conditional put is one request",
        )
    causes = ["the store or the network is down, or too slow"] if failure.kind is Kind.PASSING else []
    kind = StoreUnreachableError if failure.kind is Kind.PASSING else StorageError
    return kind(
        f"could not {doing}: {failure.said}",
        where=where,
        causes=causes,
        hint="try again; ROLLTAPE_STORE_DEADLINE=SECONDS sets how long it is tried" if causes else None,
    )
