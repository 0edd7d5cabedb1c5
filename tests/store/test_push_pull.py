"""`push`, `pull`, `sync` and `check` between directories and stores, also where requests fail."""

import json

import pytest

import rolltape
from rolltape.copying import carry_out, plan_copy
from rolltape.errors import RolltapeError, TapeNotFoundError
from rolltape.storage import LocalStorage, storage_at
from tests.cli_tapes import file_of, record, rollout, run
from tests.object_servers.fault_proxy import Faults
from tests.object_servers.fixtures import fresh


@pytest.fixture
def tape(tmp_path):
    """Six rollouts with inputs, their rewards, metrics."""
    path = record(tmp_path / "a", {step: rollout(step=step) for step in range(6)}, inputs=True)
    return record(path, {step: {"x": [step]} for step in range(6)}, stage="reward", metrics=False)


def contents(place):
    """Every file with its bytes, wherever it is."""
    storage = storage_at(place)
    return {stat.name: bytes(storage.read(stat.name)) for stat in storage.everything()}


@pytest.fixture(params=["s3", "az"])
def url(request):
    return request.getfixturevalue(f"{request.param}_url")


def test_a_tape_goes_to_a_store_and_comes_back(tape, url, tmp_path):
    done = run("push", tape, url)
    assert done.exit_code == 0, done.stderr
    assert contents(url) == contents(tape)
    assert run("pull", url, tmp_path / "b").exit_code == 0
    assert contents(tmp_path / "b") == contents(tape)
    assert run("check", url, tmp_path / "b").exit_code == 0
    (copy,) = json.loads(run("push", tape, url, "--json").stdout)["copies"]
    assert (copy["files"], copy["lines"], copy["same"]) == ([], 0, 19)


def test_the_order_does_not_matter_where_one_side_is_a_store(tape, s3_url, tmp_path):
    run("push", tape, s3_url)
    assert run("pull", tmp_path / "b", s3_url).exit_code == 0
    assert contents(tmp_path / "b") == contents(tape)


def test_a_tape_goes_from_store_to_store(tape, s3_url, az_url):
    run("push", tape, s3_url)
    assert run("push", s3_url, az_url).exit_code == 0
    assert contents(az_url) == contents(tape)


def test_both_sides_grow_and_are_synced(tape, s3_url):
    run("push", tape, s3_url)
    record(tape, {6: rollout(step=6)}, inputs=True)
    record(s3_url, {7: rollout(step=7)}, inputs=True)
    assert run("sync", s3_url, tape).exit_code == 0
    assert rolltape.open(tape).steps("rollout") == rolltape.open(s3_url).steps("rollout") == list(range(8))
    assert rolltape.open(tape).metrics() == rolltape.open(s3_url).metrics()
    assert run("check", tape, s3_url).exit_code == 0


def test_another_tape_and_a_step_that_differs_are_refused_on_a_store(tape, s3_url, tmp_path):
    run("push", tape, s3_url)
    other = record(tmp_path / "other")
    assert run("push", other, s3_url).exit_code == 2
    storage = storage_at(s3_url)
    name = "train/rollout/step_000001.parquet"
    storage.publish(name, [file_of(tape, 2).read_bytes()], replace=True)
    done = run("push", tape, s3_url, "--json")
    assert done.exit_code == 1
    assert [one["file"] for one in json.loads(done.stdout)["conflicts"]] == [name]
    assert run("check", s3_url).exit_code == 1
    assert run("push", tape, s3_url, "--rewrite").exit_code == 0
    assert contents(s3_url) == contents(tape)


def test_check_finds_what_is_damaged_on_a_store(tape, s3_url):
    run("push", tape, s3_url)
    storage = storage_at(s3_url)
    name = "train/rollout/step_000003.parquet"
    data = bytearray(storage.read(name))
    data[200] ^= 1
    storage.publish(name, [data], replace=True)
    storage.delete("train/rollout/step_000004.in.parquet")
    done = run("check", s3_url, "--json")
    assert done.exit_code == 1
    (report,) = json.loads(done.stdout)["tapes"]
    found = {(finding["kind"], finding["file"]) for finding in report["findings"]}
    assert found == {("damaged", name), ("inputs", "train/rollout/step_000004.parquet")}
    assert run("repair", s3_url, "--from", tape).exit_code == 0
    assert contents(s3_url) == contents(tape)


def test_a_push_and_a_pull_end_well_where_every_tenth_request_fails(tape, s3_url, s3_proxy, tmp_path):
    s3_proxy.faults = Faults(error=0.02, slow_down=0.02, reset=0.02, lost=0.02, truncated=0.02)
    assert run("push", tape, s3_url).exit_code == 0
    assert run("pull", s3_url, tmp_path / "b").exit_code == 0
    s3_proxy.faults = Faults()
    assert sum(s3_proxy.injected.values()) > 3
    assert contents(s3_url) == contents(tmp_path / "b") == contents(tape)


def test_a_push_that_an_outage_ends_is_no_tape_and_is_gone_on_with(tape, s3_url, s3_proxy, monkeypatch):
    monkeypatch.setenv("ROLLTAPE_STORE_DEADLINE", "1")
    source = LocalStorage(tape)

    class Leaving(LocalStorage):
        def read(self, name, *args, **options):
            s3_proxy.away |= name == "train/rollout/step_000003.parquet"
            return super().read(name, *args, **options)

    with pytest.raises(RolltapeError):
        carry_out(plan_copy(Leaving(tape), storage_at(s3_url)))
    s3_proxy.away = False
    with pytest.raises(TapeNotFoundError, match="not finished"):
        rolltape.open(s3_url)
    plan = plan_copy(source, storage_at(s3_url))
    assert plan.same > 0
    assert len(plan.missing) < 18
    assert run("push", tape, s3_url).exit_code == 0
    assert contents(s3_url) == contents(tape)
    place = f"s3://{s3_url[5:].partition('/')[0]}/{fresh()}"
    assert run("push", s3_url, place).exit_code == 0
    assert contents(place) == contents(tape)
