"""What `make soak` repeats."""

from tests.slow.rounds import *  # noqa: F403
