"""``rolltape serve``: an inference server that records the calls it passes on, and answers from the tape.

A surface: it knows HTTP and the APIs of inference servers, and puts on the tape what went through it.
"""

from rolltape.serving.call_server import Server, run_server, secured, serve
from rolltape.serving.serve_options import read_options

__all__ = ["Server", "read_options", "run_server", "secured", "serve"]
