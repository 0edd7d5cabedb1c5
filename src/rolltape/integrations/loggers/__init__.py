"""Metrics of trainers that use a logger: what is logged also goes on the tape, with exact floats.

    with capture(tape, "wandb"):            # also "tensorboard", "mlflow", "trackio"
        train()

    log = through(tape, log)                # a function of your own: log(metrics, step)
    logging.getLogger("trainer").addHandler(TapeHandler(tape))     # a logger that is given dicts

See docs/metrics.md.
"""

from rolltape.integrations.loggers.capture import TapeHandler, capture, through

__all__ = ["TapeHandler", "capture", "through"]
