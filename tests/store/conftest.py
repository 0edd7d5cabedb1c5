"""The object stores of these tests."""

from tests.object_servers.fixtures import *  # noqa: F403
