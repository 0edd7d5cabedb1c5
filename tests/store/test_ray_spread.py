"""`diff`, `check` and `rerun` over a Ray cluster say what they say on one machine, byte for byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import ray

import rolltape
import rolltape.ray
from rolltape.errors import ConfigError, CorruptFileError
from rolltape.key import Key
from rolltape.ray import ClusterError
from rolltape.ray.cluster_spread import RaySpread
from rolltape.ray.node_work import NodeWork, Sight, check_node
from rolltape.reader.integrity import inspect
from rolltape.storage import storage_at
from rolltape.verify.report.report import to_json
from rolltape.verify.rules.noise_floor import Floor, write_floor
from tests.cli_tapes import command, run
from tests.listening import assert_ray_is_of_this_machine_alone, is_of_this_machine_alone
from tests.object_servers.fixtures import forget_credentials
from tests.object_servers.s3 import BUCKET
from tests.spread_tapes import CANDIDATES, MINE, RERUNS, make_tapes
from tests.store.ray_nodes import LosesANode, _own_spool, nodes  # noqa: F401


@pytest.fixture(scope="module")
def s3_folder(s3_server):
    """A folder of the S3 server, which all nodes have the keys for: the cluster is started after it."""
    patch = pytest.MonkeyPatch()
    forget_credentials(patch, "AWS_")
    for name, value in s3_server.env().items():
        patch.setenv(name, value)
    yield f"s3://{BUCKET}/ray-{os.getpid()}"
    patch.undo()


@pytest.fixture(scope="module")
def cluster(s3_folder, _own_spool):  # noqa: F811
    with nodes(2, Path("/tmp") / f"r{os.getpid()}") as made:
        yield made
    shutil.rmtree(f"/tmp/r{os.getpid()}", ignore_errors=True)


@pytest.fixture(scope="module")
def tapes(tmp_path_factory):
    return make_tapes(tmp_path_factory.mktemp("tapes"))


def both_ways(*args):
    """The command, here and on the cluster."""
    return [
        (done.stdout, done.stderr, done.exit_code) for done in (run(*args), run(args[0], "--ray", *args[1:]))
    ]


@pytest.mark.parametrize(("candidate", "code"), CANDIDATES)
def test_a_comparison_is_the_same_on_a_cluster(cluster, tapes, candidate, code):
    here, there = both_ways("diff", tapes / "base", tapes / candidate, "--json")
    assert here == there
    assert here[2] == code


@pytest.mark.parametrize("name", ["train/metrics.jsonl", "noise.json"])
def test_notes_of_another_tape_are_refused_on_a_cluster_too(cluster, tapes, tmp_path, name):
    shutil.copytree(tapes / "base", tmp_path / "mine")
    with rolltape.Tape(tmp_path / "other", mode="record") as tape, tape.step(0):
        tape.log({"said": "MARK-other"})
    write_floor(storage_at(str(tmp_path / "other")), Floor(2, "MARK-other", ("x",), {}))
    (tmp_path / "mine" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    for words in (["diff", tmp_path / "mine", tapes / "wrong", "--json"], ["check", tmp_path / "mine"]):
        here, there = both_ways(*words)
        assert here == there
        assert here[2] != 0
        assert name in here[0] + here[1]
        assert "MARK-other" not in here[0] + here[1]


def test_a_gate_and_a_choice_of_steps_hold_on_a_cluster(cluster, tapes, tmp_path):
    gate = tmp_path / "gate.json"
    gate.write_text(json.dumps({"rules": [{"match": "loss/*", "atol": 0.5}], "require": ["loss/log_probs"]}))
    pages = []
    for extra in ([], ["--ray"]):
        junit, html = tmp_path / f"{len(extra)}.xml", tmp_path / f"{len(extra)}.html"
        done = run(
            "diff", tapes / "base", tapes / "wrong", "--gate", gate, "--steps", "0-5", "--junit", junit,
            "--html", html, *extra,
        )  # fmt: skip
        pages.append((done.stdout, done.exit_code, junit.read_text(), html.read_text()))
    assert pages[0] == pages[1]


def test_trust_is_the_same_on_a_cluster(cluster, tmp_path):
    logprobs = -np.random.default_rng(0).exponential(size=(40, 6))
    with rolltape.Tape(tmp_path / "run", mode="record") as tape:
        rollout = tape.stage("rollout")(lambda: {"uid": [f"p{at}" for at in range(40)], "logprobs": logprobs})
        for step in range(4):
            with tape.step(step):
                made = rollout()
                tape.probe("logprobs", logprobs + 0.01 * step * np.sin(np.arange(6)), uid=made["uid"])
    for wanted, code in (("plumbing-only", 0), ("exact", 1)):
        here, there = both_ways("trust", tmp_path / "run", "--gate", wanted, "--json")
        assert here == there
        assert here[2] == code


@pytest.mark.parametrize("tape", ["base", "broken"])
def test_a_check_is_the_same_on_a_cluster(cluster, tapes, tape):
    here, there = both_ways("check", tapes / tape)
    assert here == there
    assert here[2] == (tape == "broken")


def test_stages_are_computed_again_on_a_cluster(cluster, tapes, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    for args, code in RERUNS:
        here, there = both_ways("rerun", tapes / "wrong", *args)
        assert here == there
        assert code is None or here[2] == code


def test_a_command_of_its_own_joins_the_cluster_at_an_address(cluster, tapes):
    args = ["diff", tapes / "base", tapes / "wrong", "--json"]
    here = subprocess.run(command(*args), capture_output=True, check=False)
    there = subprocess.run(command(*args, "--ray", cluster.address), capture_output=True, check=False)
    assert (there.stdout, there.returncode) == (here.stdout, here.returncode), there.stderr
    assert not there.stderr


def test_a_cluster_that_is_not_there_is_an_error(tapes):
    done = subprocess.run(
        command("check", tapes / "base", "--ray", "127.0.0.1:1"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: no Ray cluster answers: ")
    assert "127.0.0.1:1" in done.stderr


def test_a_tape_in_a_store_is_compared_and_checked_on_a_cluster(cluster, tapes, s3_folder):
    for name in ("base", "wrong"):
        target = storage_at(f"{s3_folder}/{name}")
        source = storage_at(tapes / name)
        for stat in source.everything():
            target.publish(stat.name, [source.read(stat.name)], replace=False)
    for args in (
        ["diff", f"{s3_folder}/base", f"{s3_folder}/wrong", "--json"],
        ["check", f"{s3_folder}/wrong"],
    ):
        here, there = both_ways(*args)
        assert here == there
        assert here[2] == (args[0] == "diff")


def test_a_node_without_the_tape_says_so(tapes, tmp_path):
    place = str(tmp_path / "only-here")
    with pytest.raises(ConfigError) as told:
        check_node(NodeWork(iter, (Sight(place, "1234"),)))
    assert os.uname().nodename in str(told.value)
    assert place in str(told.value)
    with pytest.raises(ConfigError, match="another tape"):
        check_node(NodeWork(iter, (Sight(str(tapes / "base"), "1234"),)))
    with pytest.raises(ConfigError, match=r"has Rolltape .* 0\.0\.1"):
        check_node(NodeWork(iter, (), "0.0.1"))


def test_a_node_without_rolltape_says_so(cluster, monkeypatch, tmp_path):
    (tmp_path / "rolltape.py").write_text("raise ImportError('none of this name')")
    monkeypatch.setattr("rolltape.ray.cluster_spread.variables", lambda: {"PYTHONPATH": str(tmp_path)})
    with pytest.raises(ClusterError, match=f"node {os.uname().nodename} cannot import Rolltape: none of"):
        list(RaySpread(ray).over(iter, [1, 2, 3], []))


@ray.remote(num_cpus=1)
class Trainer:
    """Holds a CPU for good."""

    def ready(self) -> None:
        """Once it is there, it has its CPU."""


def test_work_runs_beside_a_trainer_that_holds_all_cpus(cluster, tapes):
    trainers = [Trainer.remote() for _ in range(2)]
    ray.get([trainer.ready.remote() for trainer in trainers])
    pause = threading.Event()
    while ray.available_resources().get("CPU", 0) >= 1:  # the cluster learns of it a little later
        pause.wait(0.05)
    try:
        here, there = both_ways("check", tapes / "base")
        assert here == there
    finally:
        for trainer in trainers:
            ray.kill(trainer)


def test_an_error_of_a_worker_is_raised_here(cluster, tapes):
    with pytest.raises(CorruptFileError) as there, rolltape.ray.cluster() as spread:
        rolltape.compare(tapes / "base", tapes / "damaged", steps="3-", spread=spread)
    with pytest.raises(CorruptFileError) as here:
        rolltape.compare(tapes / "base", tapes / "damaged", steps="3-")
    assert str(there.value) == str(here.value)
    assert ray.is_initialized(), "a cluster that was there before stays"


def test_nobody_but_this_machine_can_reach_the_cluster_of_these_tests(cluster):
    assert is_of_this_machine_alone(cluster.address.rpartition(":")[0])
    assert_ray_is_of_this_machine_alone()


def test_another_cluster_than_the_one_in_use_is_refused(cluster):
    with pytest.raises(ConfigError, match="already"), rolltape.ray.cluster("127.0.0.1:1"):
        pass


def test_a_lost_node_costs_a_retry_and_not_the_result(cluster, tapes, tmp_path):
    """A node is killed while it compares; another while it checks. They are replaced afterwards."""
    spread = LosesANode(cluster, tmp_path / "comparing")
    there = rolltape.compare(tapes / "base", tapes / "wrong", spread=spread)
    assert spread.lost
    assert to_json(there) == to_json(rolltape.compare(tapes / "base", tapes / "wrong"))
    cluster.add_node(num_cpus=1)
    spread = LosesANode(cluster, tmp_path / "checking")
    storage = storage_at(tapes / "broken")
    assert asdict(inspect(storage, spread=spread)) == asdict(inspect(storage))
    assert spread.lost
    cluster.add_node(num_cpus=1)


def dies(items):
    os._exit(1)


def test_work_that_ends_its_worker_every_time_is_an_error(cluster, monkeypatch):
    monkeypatch.setattr("rolltape.ray.cluster_spread.RETRIES", 1)
    with pytest.raises(ClusterError, match="2 times"):
        list(RaySpread(ray).over(dies, [Key(step=0)], []))
