"""``rolltape serve``: an inference server that records the calls it passes on, and answers from the tape.

A surface: it knows HTTP and the APIs of inference servers, and puts on the tape what went through it.
"""

from rolltape.serving.options import read_options
from rolltape.serving.server import Server, run_server, secured, serve

__all__ = ["Server", "read_options", "run_server", "secured", "serve"]
