"""What a step asks of a store, counted: the unit costs of docs/scale.md."""

from collections import Counter

import pytest

import rolltape
from benchmarks import scale_model
from tests.cli_tapes import rollout

STAGES = ("rollout", "reward")


def recorded(url, steps):
    with rolltape.Tape(url, mode="record") as tape:
        stages = [tape.stage(name)(lambda step: rollout(step=step)) for name in STAGES]
        for step in steps:
            with tape.step(step):
                for stage in stages:
                    stage(step)
                tape.log({"loss": 1.0})


def replayed(url, steps):
    with rolltape.Tape(url, mode="replay") as tape:
        stages = [tape.stage(name)(lambda step: pytest.fail("it is on the tape")) for name in STAGES]
        for step in steps:
            with tape.step(step):
                for stage in stages:
                    stage(step)


def counted(proxy, act):
    proxy.forget()
    act()
    return Counter(proxy.requests)


def times(costs, count):
    return {kind: number * count for kind, number in costs.items()}


def test_a_recorded_step_costs_what_the_model_says(s3_url, s3_proxy):
    few = counted(s3_proxy, lambda: recorded(f"{s3_url}/few", range(2)))
    many = counted(s3_proxy, lambda: recorded(f"{s3_url}/many", range(12)))
    calls = 10 * len(STAGES)
    wanted = Counter(times(scale_model.RECORDED, calls)) + Counter(times(scale_model.LOGGED, 10))
    assert many - few == wanted


def test_a_replayed_step_costs_what_the_model_says(s3_url, s3_proxy, monkeypatch):
    monkeypatch.setattr("rolltape.tape.prefetch.DEEPEST", 1)  # how far ahead depends on the moment
    costs = []
    for length in (3, 23):  # to the last step: nothing that was not asked for is read
        recorded(f"{s3_url}/{length}", range(length))
        costs.append(counted(s3_proxy, lambda length=length: replayed(f"{s3_url}/{length}", range(length))))
    few, many = costs
    wanted = times(scale_model.REPLAYED, 20 * len(STAGES))
    assert many["GET"] - few["GET"] == wanted.pop("GET")
    for kind, count in wanted.items():  # whether it is looked for a step after the last depends on the moment
        assert abs(many[kind] - few[kind] - count) <= len(STAGES), kind
    assert many["PUT"] == 0
    assert abs(many["LIST"] - few["LIST"]) <= len(STAGES), "of twenty steps more, none is listed"


def test_opening_a_tape_costs_what_the_model_says(s3_url, s3_proxy):
    recorded(s3_url, range(1))
    s3_proxy.forget()
    tape = rolltape.Tape(s3_url, mode="replay")
    assert dict(s3_proxy.requests) == scale_model.OPENED
    tape.close()


def test_nothing_is_listed_at_any_step(s3_url, s3_proxy):
    few = counted(s3_proxy, lambda: recorded(f"{s3_url}/few", range(2)))
    many = counted(s3_proxy, lambda: recorded(f"{s3_url}/many", range(22)))
    assert many["LIST"] == few["LIST"]
