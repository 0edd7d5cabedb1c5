"""Baselines: accepting a candidate as the new one, and cutting a small tape out of a large one."""
