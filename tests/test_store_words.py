"""What the errors and URLs of object stores mean, and what of them is never repeated: pure decisions."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.errors import ConfigError, StorageError, StoreUnreachableError, TapeReadOnlyError
from rolltape.storage import ObjectStorage
from rolltape.storage.spool import Entry, ready
from rolltape.storage.store_errors import Kind, explain, failure_of
from rolltape.storage.store_url import parse_url, without_secrets
from rolltape.storage.together import coalesced

URL = "https://acc.blob.core.windows.net/box/runs/x?sv=1&sig=S3CRET"
OF_A_KEY = "Generic {} error: {} request failed for key a (code: 500)/x: Why not. (code: {})\n\nDebug source"
STATUS = (
    "Error performing GET {} in 1ms - Server returned non-2xx status code: {}: <Error><Code>{}</Code></Error>"
)


class GenericError(Exception):
    """Named as obstore's."""


class PermissionDeniedError(Exception):
    """Named as obstore's."""


class AlreadyExistsError(Exception):
    """Named as obstore's."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (GenericError(STATUS.format(URL, "500 Internal Server Error", "InternalError")), Kind.PASSING),
        (GenericError(STATUS.format(URL, "503 Service Unavailable", "SlowDown")), Kind.PASSING),
        (GenericError(STATUS.format(URL, "429 Too Many Requests", "TooManyRequests")), Kind.PASSING),
        (GenericError(STATUS.format(URL, "409 Conflict", "x")), Kind.PASSING),
        (GenericError(STATUS.format(URL, "400 Bad Request", "RequestTimeout")), Kind.PASSING),
        (GenericError(STATUS.format(URL, "400 Bad Request", "InvalidArgument")), Kind.FINAL),
        (GenericError(STATUS.format(URL, "404 Not Found", "NoSuchKey")), Kind.MISSING),
        (GenericError(STATUS.format(URL, "404 Not Found", "NoSuchBucket")), Kind.NO_BUCKET),
        (GenericError(STATUS.format(URL, "416 Range Not Satisfiable", "InvalidRange")), Kind.RANGE),
        (GenericError(STATUS.format(URL, "412 Precondition Failed", "PreconditionFailed")), Kind.TAKEN),
        (GenericError(STATUS.format(URL, "413 Payload Too Large", "EntityTooLarge")), Kind.TOO_LARGE),
        (GenericError(f"HTTP error: error sending request for url ({URL}): Connect"), Kind.PASSING),
        (GenericError(f"request or response body error, operation timed out: {URL}"), Kind.PASSING),
        (GenericError("Error performing PUT http://169.254.169.254/latest/api/token"), Kind.NO_CREDENTIALS),
        (GenericError(OF_A_KEY.format("S3", "DeleteObjects", "AccessDenied")), Kind.DENIED),
        (GenericError(OF_A_KEY.format("S3", "DeleteObjects", "SlowDown")), Kind.PASSING),
        (GenericError(OF_A_KEY.format("MicrosoftAzure", "Bulk delete", "412")), Kind.TAKEN),
        (GenericError(OF_A_KEY.format("MicrosoftAzure", "Bulk delete", "403")), Kind.DENIED),
        (FileNotFoundError(f"Object at location {URL} not found"), Kind.MISSING),
        (FileNotFoundError(STATUS.format(URL, "404 Not Found", "ContainerNotFound")), Kind.NO_BUCKET),
        (PermissionDeniedError(STATUS.format(URL, "403 Forbidden", "SignatureDoesNotMatch")), Kind.DENIED),
        (AlreadyExistsError(STATUS.format(URL, "412 Precondition Failed", "x")), Kind.TAKEN),
        (AlreadyExistsError(STATUS.format(URL, "409 Conflict", "BlobAlreadyExists")), Kind.TAKEN),
        (AlreadyExistsError(STATUS.format(URL, "409 Conflict", "OperationAborted")), Kind.PASSING),
        (AlreadyExistsError(STATUS.format(URL, "409 Conflict", "ConditionalRequestConflict")), Kind.PASSING),
    ],
)
@pytest.mark.parametrize("writing", [True, False])
def test_every_error_has_a_kind_and_its_text_is_not_repeated(
    error: Exception, kind: Kind, writing: bool
) -> None:
    failure = failure_of(error)
    assert failure.kind is kind
    found = explain(failure, doing="read it", where="az://box/x", bucket="box", writing=writing)
    assert isinstance(found, StorageError)
    assert isinstance(found, StoreUnreachableError) == (kind is Kind.PASSING)
    assert isinstance(found, TapeReadOnlyError) == (kind is Kind.DENIED and writing)
    for text in (failure.said, str(found), repr(found), str(pickle.dumps(found))):
        assert "S3CRET" not in text
        assert "windows.net" not in text


@given(st.text(max_size=60))
def test_what_is_said_of_any_text_is_short_and_plain(text: str) -> None:
    assert len(failure_of(GenericError(text)).said) < 80


@pytest.mark.parametrize(
    "url",
    [
        "s3://b?sig=S3CRET",
        "s3://S3CRET@b/x",
        "az://k:S3CRET@b/x",
        "gs://b#S3CRET",
        "s3://k:S3C/S3CRET@b/x",
        "http://u:S3CRET@h/x?S3CRET",
    ],
)
def test_a_url_with_a_secret_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert "S3CRET" not in str(caught.value)
    assert "S3CRET" not in without_secrets(url)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_url_is_the_same_however_it_is_written(scheme: str) -> None:
    wanted = f"{scheme}://bucket/runs/base"
    for url in (wanted, f"{wanted}/", f"{scheme.upper()}://bucket//runs/base//"):
        assert ObjectStorage(url).location == wanted
    assert ObjectStorage(f"{scheme}://bucket").location == f"{scheme}://bucket"
    assert pickle.loads(pickle.dumps(ObjectStorage(wanted))).location == wanted


@pytest.mark.parametrize(
    ("scheme", "other"), [("s3a", "s3://"), ("gcs", "gs://"), ("abfss", "az://"), ("oss", "s3://")]
)
def test_other_names_for_a_store_are_answered_with_ours(scheme: str, other: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(f"{scheme}://bucket/x")
    assert other in (caught.value.hint or "")
    assert ("AWS_ENDPOINT_URL" in (caught.value.hint or "")) == (scheme == "oss")


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30)), max_size=12), st.integers(0, 20))
def test_joined_ranges_cover_all_and_do_not_overlap(spans: list[tuple[int, int]], gap: int) -> None:
    joined = coalesced(spans, gap)
    for offset, length in spans:
        if length:
            assert any(start <= offset and offset + length <= start + size for start, size in joined)
    for (start, size), (following, _) in pairwise(joined):
        assert following > start + size + gap


def entry(number: int, name: str) -> Entry:
    return Entry(number, "publish", name, "", False, 0, 0)


def test_the_files_of_a_step_go_one_after_the_other_and_steps_side_by_side() -> None:
    inputs, result = (
        entry(1, "train/rollout/step_000001.in.parquet"),
        entry(2, "train/rollout/step_000001.parquet"),
    )
    commit, other = entry(3, "train/reward/step_000001.commit"), entry(4, "train/rollout/step_000002.parquet")
    lines = [entry(number, "train/metrics.jsonl") for number in (5, 6)]
    waiting = [inputs, result, commit, other, *lines]
    started: list[Entry] = []
    busy: set[str] = set()
    while (found := ready(waiting, busy)) is not None:
        started.append(found)
        busy.add(found.group)
    assert started == [inputs, other, lines[0]]
    assert ready(waiting[1:], set()) is result
    assert ready([commit, other], set()) is commit
