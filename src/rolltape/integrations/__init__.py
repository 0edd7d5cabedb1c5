"""Integrations with training frameworks, one folder each. ``import rolltape`` imports none of them."""
