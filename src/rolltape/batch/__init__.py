"""The neutral form of what a stage returns, and the adapters that lead there and back."""

from rolltape.batch.batch import Batch
from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.batch.registry import register_adapter, register_visible_classes
from rolltape.batch.tree import Dismantled, assemble, dismantle

__all__ = [
    "ArrayColumn",
    "Batch",
    "Column",
    "Dismantled",
    "ObjectColumn",
    "RaggedColumn",
    "assemble",
    "dismantle",
    "register_adapter",
    "register_visible_classes",
]
