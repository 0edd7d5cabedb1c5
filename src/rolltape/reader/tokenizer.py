"""Token ids as text, with the tokenizer the user names; a tape has none."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from rolltape.errors import ConfigError, MissingDependencyError

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Some tokens as one text, special ones included."""

BROKEN = "\ufffd"


def load_tokenizer(path: str) -> Decode:
    """The tokenizer of a model's folder, or of a ``tokenizer.json``; nothing is downloaded."""
    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise ConfigError(
            "there is no tokenizer",
            where=os.path.abspath(file),
            hint="name a model's folder or a tokenizer.json",
        )
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingDependencyError("--tokenizer needs tokenizers", hint="pip install tokenizers") from None
    try:
        tokenizer: Any = Tokenizer.from_file(file)
    except Exception as error:  # the library raises nothing more specific
        raise ConfigError(f"the tokenizer cannot be read: {error}", where=os.path.abspath(file)) from error
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def token_texts(decode: Decode, ids: Sequence[int]) -> list[str]:
    r"""The text each token adds; a character that takes several tokens belongs to the last of them.

    >>> token_texts(lambda ids: bytes(ids).decode("utf-8", "replace"), list("né".encode()))
    ['n', '', 'é']
    """
    texts: list[str] = []
    start = read = 0
    for end in range(1, len(ids) + 1):
        # A token can look different at the beginning of a text, so the one before it is decoded along.
        before, after = decode(ids[start:read]), decode(ids[start:end])
        if len(after) > len(before) and not after.endswith(BROKEN):
            texts.append(after[len(before) :])
            start, read = read, end
        else:
            texts.append("")
    if texts and read < len(ids):  # the response ends inside a character
        texts[-1] = decode(ids[start:])[len(decode(ids[start:read])) :]
    return texts
