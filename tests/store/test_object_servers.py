"""The servers that the other tests stand on do what is said of them, asked with bare obstore."""

import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError
from obstore.store import S3Store, from_url

from tests.object_servers.fault_proxy import FaultProxy, Faults
from tests.object_servers.google import BUCKET as GOOGLE_BUCKET
from tests.object_servers.google import GoogleServer

ROOT = Path(__file__).resolve().parents[2]
NO_RETRY = {"max_retries": 0}


def at(url, **options):
    return from_url(url, **options)


@pytest.fixture(params=["s3", "az"])
def url(request):
    """A place on each of the servers."""
    return request.getfixturevalue(f"{request.param}_url")


def test_a_server_creates_once_however_many_race(url):
    store = at(url)

    def create(number):
        try:
            obstore.put(store, "x", b"%d" % number, mode="create")
        except AlreadyExistsError:
            return None
        return number

    with ThreadPoolExecutor(16) as pool:
        won = [number for number in pool.map(create, range(16)) if number is not None]
    assert len(won) == 1
    assert bytes(obstore.get(store, "x").bytes()) == b"%d" % won[0]


def test_a_server_updates_only_what_was_read(url):
    store = at(url)
    first = {"e_tag": obstore.put(store, "x", b"one")["e_tag"]}
    obstore.put(store, "x", b"two", mode=first)
    with pytest.raises(PreconditionError):
        obstore.put(store, "x", b"three", mode=first)
    assert bytes(obstore.get(store, "x").bytes()) == b"two"


def test_a_server_gives_ranges_and_metadata(url):
    store = at(url)
    obstore.put(store, "a/b", b"0123456789", attributes={"attempt": "me"})
    assert bytes(obstore.get_range(store, "a/b", start=3, length=4)) == b"3456"
    assert obstore.get(store, "a/b").attributes["attempt"] == "me"


def test_s3_gives_a_listing_in_pages(s3_url, s3_proxy):
    store = at(s3_url)
    for number in range(1100):
        obstore.put(store, f"many/{number:04}", b"")
    assert sum(map(len, obstore.list(store, "many"))) == 1100
    assert s3_proxy.requests["LIST"] == 2


def test_a_server_ends_with_the_process_that_started_it():
    code = (
        "from tests.object_servers.s3 import S3Server; import os; server = S3Server()\n"
        "print(server.port, server.folder, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    port, folder = done.stdout.split()
    shutil.rmtree(folder)
    assert done.returncode == -9
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", int(port))).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.05)
    raise AssertionError("the server still runs")


def test_another_place_is_empty(s3_url):
    assert sum(map(len, obstore.list(at(s3_url)))) == 0


def test_wrong_keys_are_refused(s3_url):
    with pytest.raises(Exception, match="403"):
        obstore.put(at(s3_url, secret_access_key="wrong"), "x", b"")


def test_the_proxy_passes_signed_requests_on_and_counts_them(s3_url, s3_proxy):
    store = at(s3_url)
    data = bytes(range(256)) * 40_000
    obstore.put(store, "x", data, mode="create", use_multipart=False)
    assert bytes(obstore.get(store, "x").bytes()) == data
    obstore.head(store, "x")
    assert sum(map(len, obstore.list(store))) == 1
    obstore.delete(store, "x")
    assert s3_proxy.requests["PUT"] == s3_proxy.requests["GET"] == s3_proxy.requests["HEAD"] == 1
    assert s3_proxy.requests["LIST"] == 1
    assert s3_proxy.received["GET"] == s3_proxy.sent["PUT"] == len(data)
    assert not s3_proxy.injected


@pytest.mark.parametrize("fault", ["error", "slow_down", "reset", "lost", "truncated"])
def test_a_fault_fails_a_request_and_the_next_one_passes(s3_url, s3_proxy, fault):
    store = at(s3_url, retry_config=NO_RETRY)
    obstore.put(store, "x", b"0123456789")
    s3_proxy.once(fault, "GET")
    with pytest.raises(GenericError):
        obstore.get(store, "x").bytes()
    assert bytes(obstore.get(store, "x").bytes()) == b"0123456789"
    assert s3_proxy.injected == {fault: 1}


def test_the_proxy_stands_before_azurite_as_well(az_url, az_proxy):
    store = at(az_url, retry_config=NO_RETRY)
    az_proxy.once("lost", "PUT")
    with pytest.raises(GenericError):
        obstore.put(store, "x", b"done", mode="create")
    assert bytes(obstore.get(store, "x").bytes()) == b"done"
    assert sum(map(len, obstore.list(store))) == 1
    assert az_proxy.requests == {"PUT": 1, "GET": 1, "LIST": 1}


def test_the_emulator_of_google_does_not_speak_what_obstore_sends(monkeypatch):
    """Why docs/stores.md calls gs:// untested. Should this fail one day, test tapes on it."""
    server = GoogleServer()
    try:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        store = from_url(f"gs://{GOOGLE_BUCKET}/x", retry_config=NO_RETRY)
        refused = {
            "ETag Header missing": lambda: obstore.put(store, "x", b"1", mode="create"),
            "Last-Modified Header missing": lambda: obstore.get(store, "x"),
            "HEAD .*501": lambda: obstore.head(store, "x"),
            "GET .*list-type=2.*501": lambda: next(iter(obstore.list(store))),
            "DELETE .*501": lambda: obstore.delete(store, "x"),
        }
        for said, ask in refused.items():
            with pytest.raises(GenericError, match=said):
                ask()
    finally:
        server.stop()


def test_a_lost_answer_is_of_a_request_that_was_done(s3_url, s3_proxy):
    store = at(s3_url, retry_config=NO_RETRY)
    s3_proxy.once("lost", "PUT")
    with pytest.raises(GenericError):
        obstore.put(store, "x", b"done", mode="create")
    assert bytes(obstore.get(store, "x").bytes()) == b"done"
    s3_proxy.once("reset", "PUT")
    with pytest.raises(GenericError):
        obstore.put(store, "y", b"not done", mode="create")
    with pytest.raises(FileNotFoundError):
        obstore.get(store, "y")


def test_a_retried_create_whose_answer_was_lost_looks_like_a_lost_race(s3_url, s3_proxy):
    """Why a recording carries the id of its attempt."""
    s3_proxy.once("lost", "PUT")
    with pytest.raises(AlreadyExistsError):
        obstore.put(at(s3_url), "x", b"mine", mode="create")


def test_nobody_is_there_during_an_outage(s3_url, s3_proxy):
    store = at(s3_url, retry_config=NO_RETRY)
    obstore.put(store, "x", b"")
    s3_proxy.away = True
    for _ in range(3):
        with pytest.raises(GenericError):
            obstore.head(store, "x")
    s3_proxy.away = False
    assert obstore.head(store, "x")["size"] == 0


def test_a_hanging_store_ends_with_the_clients_patience(s3_url, s3_proxy):
    store = at(s3_url, retry_config=NO_RETRY, client_options={"timeout": "200ms"})
    s3_proxy.once("hang", "GET")
    with pytest.raises(GenericError):
        obstore.get(store, "x")


def test_latency_delays_every_request(s3_url, s3_proxy):
    store = at(s3_url)
    obstore.put(store, "x", b"")
    s3_proxy.faults = Faults(latency=0.2)
    start = time.monotonic()
    obstore.head(store, "x")
    obstore.head(store, "x")
    assert time.monotonic() - start >= 0.4


def test_the_same_seed_gives_the_same_faults(s3_server, s3_url):
    seen = []
    for seed in (1, 1, 2):
        with FaultProxy(s3_server.port, Faults(reset=0.2, error=0.2), seed) as proxy:
            store = at(s3_url, endpoint=f"http://127.0.0.1:{proxy.port}", retry_config=NO_RETRY)
            seen.append([_fails(store) for _ in range(40)])
    assert seen[0] == seen[1] != seen[2]
    assert 4 <= sum(seen[0]) <= 28


def _fails(store: S3Store) -> bool:
    try:
        obstore.put(store, "x", b"", use_multipart=False)
    except GenericError:
        return True
    return False
