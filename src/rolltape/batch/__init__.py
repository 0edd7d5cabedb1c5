"""The neutral form of what a stage returns, and the adapters that lead there and back."""

from rolltape.batch.batch import Batch
from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.batch.registry import register_adapter, register_visible_classes
from rolltape.batch.roles import register_role
from rolltape.batch.tree import Dismantled, Tree, dismantle, dismantle_one

__all__ = [
    "ArrayColumn",
    "Batch",
    "Column",
    "Dismantled",
    "ObjectColumn",
    "RaggedColumn",
    "Tree",
    "dismantle",
    "dismantle_one",
    "register_adapter",
    "register_role",
    "register_visible_classes",
]
