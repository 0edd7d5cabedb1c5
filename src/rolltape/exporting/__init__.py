"""A tape for other tools: JSON Lines, and Parquet for datasets, one row per sample and without padding."""

from rolltape.exporting.run import Choice, Export, export_tape

__all__ = ["Choice", "Export", "export_tape"]
