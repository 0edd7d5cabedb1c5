"""Training frameworks on tapes, one folder each. Nothing here is imported by ``import rolltape``."""
