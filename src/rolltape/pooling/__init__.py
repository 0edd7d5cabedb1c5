"""Pools: samples over steps and tapes as one lazy table, filtered, as batches to train on.

``rolltape.pool`` makes one. What it knows of samples it knows from the index of samples; a recording is
opened for rows that are used, and for no others.
"""

from rolltape.pooling.filtering import FORMATS, Filtered, filter_tapes
from rolltape.pooling.sample_pool import UNIQUE, Pool, PoolRow, pool
from rolltape.pooling.training import Training

__all__ = ["FORMATS", "UNIQUE", "Filtered", "Pool", "PoolRow", "Training", "filter_tapes", "pool"]
