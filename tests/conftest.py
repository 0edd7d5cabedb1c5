"""What each stack collects, and the ground every test stands on.

`tests/*.py` runs on every stack; the folders below need torch or the big readers, so only `core` has them.
The stack decides and not what can be imported: a missing library must fail a test, not skip it.
"""

import os

from hypothesis import HealthCheck, settings

STACK = os.environ.get("ROLLTAPE_STACK", "core")

collect_ignore = {
    "core": ["verl", "engines", "trl", "viewer"],
    "light": ["torch", "slow", "interop", "verl", "engines", "trl", "viewer"],
    "verl": ["torch", "slow", "interop", "engines", "trl", "viewer"],
    "engines": ["torch", "slow", "interop", "verl", "trl", "viewer"],
    "trl": ["torch", "slow", "interop", "verl", "engines", "viewer"],
    "viewer": ["torch", "slow", "interop", "verl", "engines", "trl"],
}[STACK]

# The settings a user exports for a run of their own must not steer the tests.
for name in [name for name in os.environ if name.startswith("ROLLTAPE_")]:
    if name not in (
        "ROLLTAPE_STACK",
        "ROLLTAPE_CACHE",
        "ROLLTAPE_ROLL_SRC",
        "ROLLTAPE_SLIME_SRC",
        "ROLLTAPE_MILES_SRC",
    ):
        del os.environ[name]

# Tables must not be laid out by the terminal, or the temporary folder, that a run happens to have.
os.environ.pop("COLUMNS", None)

# Time limits would fail a right answer on a busy machine.
settings.register_profile("rolltape", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rolltape")
