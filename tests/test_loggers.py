"""Loggers without a library: Python's own, and functions people write."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest

import rolltape
from rolltape.integrations.loggers import TapeHandler, capture, through

EXACT = {"third": 1 / 3, "tiny": 5e-324, "nan": math.nan, "many": 2**60, "yes": True, "f32": np.float32(0.1)}


@pytest.fixture
def tape(tmp_path):
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        yield tape


@pytest.fixture
def logger(tape):
    """A logger of this test alone."""
    found = logging.Logger("trainer", logging.INFO)
    found.addHandler(TapeHandler(tape))
    return found


def same(found, wanted) -> bool:
    return repr(found) == repr(
        {name: getattr(value, "item", lambda v=value: v)() for name, value in wanted.items()}
    )


def test_a_logger_that_is_given_dicts(tape, logger) -> None:
    logger.info({"step": 3, **EXACT})
    assert same(tape.metrics()[3], EXACT)


def test_a_logger_that_formats_dicts(tape, logger) -> None:
    logger.info("loss %(loss).2f", {"loss": 1 / 3, "step": 4})
    assert tape.metrics() == {4: {"loss": 1 / 3}}


def test_text_is_nothing_to_keep(tape, logger) -> None:
    logger.info("begin")
    logger.info("%d samples", 5)
    assert tape.metrics() == {}


def test_the_step_of_the_tape_holds_where_a_logger_knows_none(tape, logger) -> None:
    with tape.step(6):
        logger.info({"loss": 0.5})
    assert tape.metrics() == {6: {"loss": 0.5}}


def test_metrics_of_no_step_are_an_error(logger) -> None:
    with pytest.raises(rolltape.NoStepError):
        logger.info({"loss": 0.5})


def test_a_function(tape) -> None:
    seen = []

    def log(metrics, step, prefix=""):
        seen.append((metrics, step, prefix))
        return "done"

    kept = through(tape, log, split="val")
    assert kept(EXACT, step=2, prefix="x") == "done"
    assert seen == [(EXACT, 2, "x")]
    assert same(tape.metrics("val")[2], EXACT)


def test_what_is_no_number_is_left_out_and_said(tape, caplog) -> None:
    caplog.set_level(logging.INFO, "rolltape")
    log = through(tape, lambda data, step: None)
    for step in (0, 1):
        log({"loss": 0.5, "picture": np.zeros((2, 2)), "eval": {"score": 1.5, "table": [1, 2]}}, step)
    assert tape.metrics() == {step: {"loss": 0.5, "eval": {"score": 1.5}} for step in (0, 1)}
    assert [r.message for r in caplog.records if "not a number" in r.message] == [
        "picture is a ndarray, not a number: not on the tape",
        "eval/table is a list, not a number: not on the tape",
    ]


def test_an_unknown_library_is_refused(tape) -> None:
    with pytest.raises(rolltape.ConfigError, match="unknown logger 'wandbb'"), capture(tape, "wandbb"):
        pass


def test_naming_none_is_refused(tape) -> None:
    with pytest.raises(rolltape.ConfigError, match="name at least one logger"), capture(tape):
        pass
