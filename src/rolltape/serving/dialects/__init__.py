"""What the calls of a model look like in each API: requests, answers, streams and errors.

Pure functions over JSON and bytes. Nothing here knows about sockets, tapes or which recording answers.
Whatever is malformed is read as far as it goes and never raises; the raw bytes stay the truth.

    dialect = find("POST", "/v1/chat/completions")
    dialect.request(body).messages
    dialect.streamed(b"data: {...}\\n\\ndata: [DONE]\\n\\n").choices[0].text
"""

from __future__ import annotations

from rolltape.serving.dialects.call_samples import (
    Parts,
    asking_for,
    choices_of,
    put_together,
    stands_alone,
    take_apart,
)
from rolltape.serving.dialects.dialect import Choice, Dialect, Request, Response
from rolltape.serving.dialects.endpoints import find

__all__ = [
    "Choice", "Dialect", "Parts", "Request", "Response", "asking_for", "choices_of", "find", "put_together",
    "stands_alone", "take_apart",
]  # fmt: skip
