"""What ``rolltape demo`` shows: a language model trained by RL, recorded, replayed, changed and broken."""
