"""Two processes of TRL that record to a real S3 server, and two on a machine that has the URL alone.

In between the first batch is folded into a segment, so that a replay meets folded shards and plain ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import rolltape
from tests.compacting import folded
from tests.object_servers.fixtures import objects
from tests.trl.test_processes import train_on_two


def test_a_fresh_machine_replays_what_two_processes_recorded_to_s3(
    model: str, tmp_path: Path, unused_tcp_port: int, s3_url: str, fresh_machine: Callable[[], dict[str, str]]
) -> None:
    there, here = fresh_machine(), fresh_machine()
    recorded = train_on_two(
        "torchrun", model, tmp_path / "a", s3_url, "record", unused_tcp_port, max_steps=4, **there
    )
    done = folded(s3_url, keep=1)
    assert done.recordings == done.open >= 2
    up = objects(s3_url)
    plain = [name for name in up if "/step_" in name and name.endswith(".parquet")]
    assert len(plain) == done.open
    assert all("/step_000002." in name for name in plain)
    shards = {(at.key.step, at.key.rank) for at in rolltape.open(s3_url).recordings(stage="rollout")}
    assert shards == {(0, 0), (0, 1), (2, 0), (2, 1)}  # each batch is used for two steps
    replayed = train_on_two(
        "torchrun", model, tmp_path / "b", s3_url, "replay", unused_tcp_port, max_steps=4, **here
    )
    assert replayed == recorded
    assert recorded[0]["weights"] == recorded[1]["weights"]
    assert objects(s3_url) == up, "a replay leaves the store as it was"
    assert not Path(here["ROLLTAPE_SPOOL"]).exists(), "and has nothing to wait for it"
