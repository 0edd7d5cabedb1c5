"""Metrics of trainers that only log: what goes to a logger goes on the tape too, floats exact.

    with capture(tape, "wandb"):            # also "tensorboard", "mlflow", "trackio"
        train()

    log = through(tape, log)                # a function of your own: log(metrics, step)
    logging.getLogger("trainer").addHandler(TapeHandler(tape))     # a logger that is given dicts

See docs/metrics.md.
"""

from rolltape.integrations.loggers.capture import capture, through
from rolltape.integrations.loggers.handler import TapeHandler

__all__ = ["TapeHandler", "capture", "through"]
