"""A tape for other tools: JSON Lines, and Parquet for datasets, one row per sample and without padding."""

from rolltape.exporting.tape_export import FORMATS, STDOUT, Choice, Export, export_tape

__all__ = ["FORMATS", "STDOUT", "Choice", "Export", "export_tape"]
