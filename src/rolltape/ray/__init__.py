"""Tapes and Ray: samples as a Ray Data ``Dataset`` and back onto a tape, work spread over a cluster.

``pip install "rolltape[ray-data]"`` brings what it needs; this module is imported without it.
"""

from rolltape.ray.cluster_spread import ClusterError, cluster
from rolltape.ray.reading import read
from rolltape.ray.writing import write

__all__ = ["ClusterError", "cluster", "read", "write"]
