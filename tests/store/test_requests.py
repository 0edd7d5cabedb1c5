"""How many requests a step costs: docs/stores.md says so, and nothing is listed on the way."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import rolltape
from rolltape.key import Key
from rolltape.storage import ObjectStorage
from rolltape.tape.recording import Recording
from tests.object_servers.fault_proxy import FaultProxy
from tests.store.runs import batch_of, train


def steps_of(tape: rolltape.Tape, proxy: FaultProxy, steps: range, *, log: bool = True) -> Counter[str]:
    stage = tape.stage("rollout")(batch_of)
    proxy.forget()
    for step in steps:
        with tape.step(step):
            stage(step)
            if log:
                tape.log({"loss": 1.0})
    tape.flush()
    tape._dispatcher.storage.settle(60)  # type: ignore[union-attr]
    return Counter(proxy.requests)


def test_a_recorded_step_costs_a_look_and_a_put_and_its_metrics_one_put(
    s3_url: str, s3_proxy: FaultProxy
) -> None:
    with rolltape.Tape(s3_url, mode="record") as tape:
        steps_of(tape, s3_proxy, range(1))
        found = steps_of(tape, s3_proxy, range(1, 21))
    assert found == {"HEAD": 20, "PUT": 40}


def test_a_replayed_step_costs_one_read_and_three_looks(
    s3_url: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolltape.tape.prefetch.DEEPEST", 1)  # how far ahead depends on the moment
    with rolltape.Tape(s3_url, mode="record") as tape:
        steps_of(tape, s3_proxy, range(21))
    with rolltape.Tape(s3_url, mode="replay") as tape:
        steps_of(tape, s3_proxy, range(1))
        found = steps_of(tape, s3_proxy, range(1, 21))
    assert found["LIST"] == 0
    assert found["GET"] <= 20
    assert found["HEAD"] <= 60


@pytest.mark.parametrize("rows", [16, 3000])
def test_opening_a_recording_is_one_request_and_some_columns_one_more(
    s3_url: str, s3_proxy: FaultProxy, rows: int
) -> None:
    rng = np.random.default_rng(0)
    columns = {f"c{n}": rng.random((rows, 100)) for n in range(6)}
    with rolltape.Tape(s3_url, mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: columns)()
    recording = Recording(ObjectStorage(s3_url), Key(step=0))
    recording.about  # noqa: B018, the first look at the tape also reads tape.json
    s3_proxy.forget()
    recording = recording.again()
    assert recording.samples == rows
    assert s3_proxy.requests == {"GET": 1}
    found = recording.batch(["c2", "c3"])
    assert np.asarray(found["c3"]).tobytes() == columns["c3"].tobytes()
    groups = -(-rows // 256)
    assert s3_proxy.requests["GET"] <= 1 + groups
    assert s3_proxy.requests["HEAD"] == s3_proxy.requests["LIST"] == 0
    assert s3_proxy.received["GET"] < rows * 100 * 8 * 6 * 0.4 + 200_000


def test_a_comparison_lists_as_much_however_many_steps_there_are(s3_url: str, s3_proxy: FaultProxy) -> None:
    lists = []
    for count in (2, 10):
        for name in ("base", "again"):
            train(f"{s3_url}/{count}/{name}", "record", range(count))
        s3_proxy.forget()
        report = rolltape.compare(f"{s3_url}/{count}/base", f"{s3_url}/{count}/again")
        assert report.clean
        lists.append(s3_proxy.requests["LIST"])
    assert lists[0] == lists[1]
