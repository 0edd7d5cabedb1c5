"""Stop texts: whether the last token of a response completed one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolltape.engines.encoding import cut_at_stop


class StopTexts:
    """Texts that end a response, looked for as tokens arrive."""

    def __init__(self, texts: Sequence[str], tokenizer: Any) -> None:
        self._texts = texts
        self._tokenizer = tokenizer
        # A token has at least one byte, and the text may begin inside one.
        self._window = max(len(text.encode("utf-8", "surrogatepass")) for text in texts) + 4

    def text_before(self, tokens: Sequence[int]) -> str | None:
        """The text before a stop text that the last token completed; None if it completed none."""
        tail = self._decode(tokens[-self._window :])
        if not cut_at_stop(tail, self._texts)[1]:
            return None
        text = self._decode(tokens)
        start = max(len(text) - len(tail), 0)
        before, found = cut_at_stop(text[start:], self._texts)
        return text[:start] + before if found else None

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))
