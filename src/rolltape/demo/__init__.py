"""What ``rolltape demo`` shows: a language model trained by RL, recorded, replayed, changed and broken.

Needs torch and transformers.
"""

from rolltape.demo.demo_page import write_page
from rolltape.demo.runs import RIGHT, WRONG, Act, Story

__all__ = ["RIGHT", "WRONG", "Act", "Story", "write_page"]
