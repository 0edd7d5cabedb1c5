"""Runs a training script with its trainers on the tape that ``ROLLTAPE_*`` variables name.

python -m rolltape.integrations.trl train.py --its --options
accelerate launch -m rolltape.integrations.trl train.py
python -m rolltape.integrations.trl -m trl.scripts.grpo --model_name_or_path …
"""

from __future__ import annotations

import logging
import os
import runpy
import sys

from rolltape.errors import RolltapeError
from rolltape.integrations import log_lines
from rolltape.integrations.trl.install import install
from rolltape.settings import resolve

log = logging.getLogger("rolltape")


def main(arguments: list[str]) -> None:
    """Run a script, or a module after ``-m``, like Python itself."""
    if arguments[:1] in ([], ["-h"], ["--help"], ["-m"]) and len(arguments) < 2:
        sys.exit(f"{__doc__}\nGive a script, or -m and a module.")
    log_lines.show()
    try:
        if resolve({}, os.environ).dir is None:
            log.warning("rolltape: no tape is set; set ROLLTAPE_DIR and ROLLTAPE_MODE, or use: rolltape run")
    except RolltapeError as error:
        sys.exit(f"error: {error}")
    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
