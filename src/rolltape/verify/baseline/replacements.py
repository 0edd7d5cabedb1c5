"""Stand-ins for what must not leave the house: equal values have equal ones, different values different ones.

They are made with a key that is never written. Whoever has only the stand-in cannot confirm a guess.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from rolltape.batch.dtypes import storage_dtype
from rolltape.errors import BatchError

T = TypeVar("T", str, bytes)

SHORTEST = 16
"""Letters that tell any two texts apart."""
VOCABULARY = 2**24
"""Token ids are below; larger numbers are replaced one by one."""
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz      ", np.uint8)
_TRIES = 10_000


class StandIns:
    """One mapping for a whole tape, kept in memory only."""

    def __init__(self, largest: int = 0) -> None:
        """``largest`` is the largest token id: stand-ins are no larger, so that models still know them."""
        self._key = os.urandom(32)
        generator = np.random.Generator(np.random.PCG64(int.from_bytes(os.urandom(16), "big")))
        self._tokens = generator.permutation(min(largest, VOCABULARY - 1) + 1).astype(np.int64)
        self._known: dict[tuple[object, ...], object] = {}
        self._taken: set[tuple[object, ...]] = set()

    def text(self, text: str) -> str:
        """Letters of the same class of length: up to 31 are 16, up to 63 are 32, …; nothing for nothing."""
        if not text:
            return text
        digest = self._digest(b"text", text.encode("utf-8", "surrogatepass"))
        head = "".join(chr(97 + int(digit, 16)) for digit in digest[: SHORTEST // 2].hex())
        more = max(SHORTEST, 1 << (len(text).bit_length() - 1)) - SHORTEST
        return head + _LETTERS[_generator(digest).integers(0, len(_LETTERS), more)].tobytes().decode()

    def text_within(self, text: str, width: int) -> str:
        """One for an array whose elements have at most ``width`` letters."""
        if not text or width >= SHORTEST:
            return self.text(text)[:width]
        return self._unused(("text", width), text, lambda attempt: self.text(attempt + text)[:width])

    def data(self, data: bytes) -> bytes:
        """As many bytes."""
        if not data:
            return data

        def make(attempt: str) -> bytes:
            return _generator(self._digest(b"data" + attempt.encode(), data)).bytes(len(data))

        return make("") if len(data) >= SHORTEST else self._unused(("data", len(data)), data, make)

    def picture(self, row: np.ndarray, dtype: str) -> np.ndarray:
        """An array of the same shape; floats lie between 0 and 1."""
        if not row.size:
            return row
        kind = row.dtype.kind
        if kind != "f" and dtype != "bfloat16":
            bits = self.data(row.tobytes())
            if dtype.startswith("float"):  # of 8 bits: these are numbers in all of its kinds
                bits = (np.frombuffer(bits, np.uint8) & 0x37).tobytes()
            return np.array(np.frombuffer(bits, row.dtype).reshape(row.shape))
        drawn = _generator(self._digest(b"picture", row.tobytes())).random(row.shape)
        if kind == "f":
            return np.asarray(drawn.astype(row.dtype))
        return np.asarray(drawn.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)

    def tokens(self, values: np.ndarray) -> np.ndarray:
        """Other ids in place of these. What is negative and small is no token, and stays."""
        wide = values.astype(np.int64) if values.dtype.itemsize < 8 else values
        found: np.ndarray = values.copy()
        small = (wide >= 0) & (wide < len(self._tokens))
        found[small] = self._tokens[wide[small].astype(np.int64)].astype(values.dtype)
        large = np.argwhere((wide >= len(self._tokens)) | (wide <= -VOCABULARY))
        for at in map(tuple, large):
            found[at] = self.number(int(wide[at]))
        return found

    def number(self, number: int) -> int:
        """A large number, perhaps a hash, as another with as many bits."""
        size = max(abs(number).bit_length() - 1, 0)

        def make(attempt: str) -> str:
            drawn = self._digest(b"number" + attempt.encode(), hex(number).encode())
            return hex((1 << size) + int.from_bytes(drawn * (size // 256 + 1), "big") % (1 << size))

        found = int(self._unused(("number", size, number < 0), hex(number), make), 16)
        return -found if number < 0 else found

    def uuid(self, value: str) -> str:
        """Another uuid, of the same version."""
        return uuid.UUID(bytes=self._digest(b"uuid", value.encode())[:16], version=4).hex

    def _digest(self, kind: bytes, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=32, key=self._key, person=kind[:16]).digest()

    def _unused(self, kind: tuple[object, ...], value: T, make: Callable[[str], T]) -> T:
        """Short values have few stand-ins: the first that no other value has."""
        asked = (*kind, value)
        known = self._known.get(asked)
        if isinstance(known, type(value)):
            return known
        for attempt in range(_TRIES):
            found = make(str(attempt) if attempt else "")
            given = (*kind, found)
            if given not in self._taken:
                self._taken.add(given)
                self._known[asked] = found
                return found
        raise BatchError(f"there are not enough stand-ins for values as short as {len(value)}")


class Survey(StandIns):
    """Changes nothing, and notes what is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def text(self, text: str) -> str:
        return text

    def text_within(self, text: str, width: int) -> str:
        return text

    def data(self, data: bytes) -> bytes:
        return data

    def picture(self, row: np.ndarray, dtype: str) -> np.ndarray:
        return row

    def tokens(self, values: np.ndarray) -> np.ndarray:
        small = values[values < VOCABULARY]
        self.largest = max(self.largest, int(small.max(initial=0)))
        return values

    def number(self, number: int) -> int:
        return number


def rounded(values: np.ndarray, dtype: str, digits: int) -> np.ndarray:
    """Floats with so many significant digits; other dtypes, and those of 8 bits, as they are."""
    if dtype == "bfloat16":
        wide = (values.astype(np.uint32) << 16).view(np.float32)
        bits = np.ascontiguousarray(rounded(wide, "float32", digits)).view(np.uint32)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isfinite(wide), nearest, values).astype(np.uint16)
    if values.dtype.kind != "f" or storage_dtype(dtype).kind != "f":
        return values
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        scale = 10.0 ** (digits - 1 - np.floor(np.log10(np.abs(wide))))
        found = np.round(wide * scale) / scale
    return np.where(np.isfinite(found) & (wide != 0), found, wide).astype(values.dtype)


def _generator(digest: bytes) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))
