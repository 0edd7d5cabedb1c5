"""What each run collects, and the ground every test stands on. tests/stacks.py decides which folders run."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import stacks

HERE = Path(__file__).resolve().parent


class Absent(pytest.Collector):
    """A folder that cannot run here: one skipped entry, whose reason says what it lacks."""

    def collect(self):
        pytest.skip(stacks.why_not(self.path.name))


def pytest_ignore_collect(collection_path):
    """Folders of other stacks are none of a stack's business."""
    if stacks.STACK and collection_path.parent == HERE and collection_path.name in stacks.NEEDS:
        return True if stacks.why_not(collection_path.name) else None
    return None


def pytest_collect_directory(path, parent):
    if path.parent == HERE and path.name in stacks.NEEDS and stacks.why_not(path.name):
        return Absent.from_parent(parent, name=path.name, path=path)
    return None


def pytest_configure(config):
    """A stack says it on the command line; elsewhere one loud library would fail what runs beside it."""
    if stacks.STACK is None and not all(map(stacks.why_not, stacks.LOUD)):
        config.addinivalue_line("filterwarnings", "default")


def pytest_terminal_summary(terminalreporter):
    """Without a stack nobody knows what ought to be here, so what is missing is said."""
    absent = [] if stacks.STACK else list(filter(None, map(stacks.why_not, stacks.NEEDS)))
    for reason in absent:
        terminalreporter.write_line(f"skipped: {reason}")


# The settings a user exports for a run of their own must not steer the tests.
KEPT = {
    "STACK", "CACHE", "COMPAT", "SOAK_ROUNDS", "SOAK_SEED", "SOAK_MINUTES", "FUZZ_EXAMPLES", "FUZZ_SEED",
    "ROLL_SRC", "SLIME_SRC", "MILES_SRC",
}  # fmt: skip
for name in [name for name in os.environ if name.startswith("ROLLTAPE_")]:
    if name.removeprefix("ROLLTAPE_") not in KEPT:
        del os.environ[name]

# Nothing must depend on the terminal, the shell or the CI that a run happens to have, or write to its report.
for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "GITHUB_STEP_SUMMARY"):
    os.environ.pop(name, None)
os.umask(0o022)

# Time limits would fail a right answer on a busy machine.
slow = [HealthCheck.too_slow]
settings.register_profile(
    "rolltape", deadline=None, suppress_health_check=slow, max_examples=stacks.examples()
)
settings.load_profile("rolltape")
