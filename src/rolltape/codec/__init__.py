"""Batches as Parquet files, and back: packed, proven, sealed."""
