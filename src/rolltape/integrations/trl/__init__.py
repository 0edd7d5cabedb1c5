"""TRL on tapes: what ``GRPOTrainer`` and ``RLOOTrainer`` generate is recorded, then replayed.

    from rolltape.integrations.trl import instrument

    instrument(trainer, tape)          # a trainer that is built; without a tape: the one ROLLTAPE_* names
    install(tape)                      # or, before: every trainer that is built from now on

Without a change to the script: ``python -m rolltape.integrations.trl train.py``. See docs/trl.md.
"""

from rolltape.integrations.trl.install import install, uninstall
from rolltape.integrations.trl.instrument import instrument

__all__ = ["install", "instrument", "uninstall"]
