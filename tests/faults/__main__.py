"""Try out rows of the table by name: ``python -m tests.faults "one log-prob"``."""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path

from tests.faults.case import Bases, table, try_out
from tests.faults.table import faults, harmless

with tempfile.TemporaryDirectory() as folder:
    bases, found = Bases(Path(folder)), []
    for case in (*faults(), *harmless()):
        if all(word in case.name for word in sys.argv[1:]):
            try:
                found.append(try_out(case, bases))
            except Exception:
                print(case.name)
                traceback.print_exc(limit=-3)
    if len(sys.argv) > 1:
        for one in found:
            print(one.case.name, one.right, one.said, one.causes, sep="\n    ")
    print(table(found))
