"""Rows of both runs laid beside each other: the same sample, the same token."""
