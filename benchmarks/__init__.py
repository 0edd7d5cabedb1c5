"""Speed, size and memory of Rolltape against what people use today, in one run. ``make bench``."""
