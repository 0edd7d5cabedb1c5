"""TRL on tapes: what ``GRPOTrainer`` and ``RLOOTrainer`` generate is recorded, then replayed.

    from rolltape.integrations.trl import instrument

    instrument(trainer, tape)          # an existing trainer; without a tape: the one ROLLTAPE_* names
    install(tape)                      # or every trainer that is created from now on

Without changing the script: ``python -m rolltape.integrations.trl train.py``. See docs/trl.md.
"""

from rolltape.integrations.trl.install import install, uninstall
from rolltape.integrations.trl.instrument import instrument

__all__ = ["install", "instrument", "uninstall"]
