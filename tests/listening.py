"""Where the servers that a test started listen: nobody but this machine may reach them."""

from __future__ import annotations

import ipaddress

import psutil

RAY = {"gcs_server", "raylet"}
"""The servers of a Ray cluster, by the names of their processes."""


def listening() -> set[tuple[str, str]]:
    """Name and address of every process below this one that listens; the S3 server of the tests aside."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            name, connections = process.name(), process.net_connections("tcp")
        except psutil.NoSuchProcess:  # it has ended since
            continue
        found |= {(name, one.laddr.ip) for one in connections if one.status == psutil.CONN_LISTEN}
    return {(name, address) for name, address in found if name != "weed"}


def is_of_this_machine_alone(address: str) -> bool:
    """Whether an address is one of loopback."""
    return ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback


def assert_ray_is_of_this_machine_alone() -> None:
    """A Ray cluster runs below this process, and nobody else can reach it."""
    found = listening()
    assert {name for name, _ in found} >= RAY
    assert [one for one in found if not is_of_this_machine_alone(one[1])] == []
