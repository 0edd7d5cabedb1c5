"""A recording that can be damaged, in memory or in a store, and the question what a reader makes of it."""

from __future__ import annotations

import io
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pyarrow.parquet as pq
import pytest

import rolltape
from rolltape.batch import dismantle
from rolltape.codec.file import encode
from rolltape.codec.pack import pack
from rolltape.storage import Stat
from rolltape.tape.place import FIELDS
from tests.fixtures.exact import digest

KEY = rolltape.Key(step=0)
DETECTED = (rolltape.CorruptFileError, rolltape.FormatVersionError)


class Memory:
    """A storage of one file, as far as reading needs one."""

    location = "/memory"

    def __init__(self, data: bytearray) -> None:
        self.data = data

    def stat(self, name: str) -> Stat:
        return Stat(name, len(self.data), "")

    def read_ranges(
        self, name: str, spans: Sequence[tuple[int, int]], revision: str | None = None
    ) -> list[memoryview]:
        for offset, length in spans:
            assert 0 <= offset <= offset + length <= len(self.data), "nobody may ask for more than there is"
        return [memoryview(bytes(self.data[offset : offset + length])) for offset, length in spans]

    def read_end(self, name: str, length: int, whole: int = 0) -> tuple[Stat, bytes]:
        size = len(self.data)
        wanted = size if size <= max(whole, length) else length
        return self.stat(name), bytes(self.data[size - wanted :])


class Patient:
    """One recorded value: its bytes, and what reading damaged ones gives.

    ``keep`` puts the bytes of a recording where they are read from, in the place of those before them.
    """

    def __init__(self, value: Any, keep: Callable[[bytearray], Any] = Memory) -> None:
        self.value = value
        self._keep = keep
        about = {name: getattr(KEY, name) for name in FIELDS}
        self.data = b"".join(bytes(piece) for piece in encode(pack(dismantle(value)), **about))
        self.outcomes: Counter[str] = Counter()
        self.location = keep(bytearray(self.data)).location
        self._whole = digest(self.read(self.data))
        assert self._whole == digest(value)

    @property
    def seal(self) -> int:
        """Where the seal begins."""
        return self.data.rindex(b"RTSEAL01")

    @cached_property
    def unused(self) -> set[int]:
        """Bytes that no reader looks at: the first magic, and what is repeated behind each column chunk."""
        metadata = pq.read_metadata(io.BytesIO(self.data))
        free = set(range(self.seal))
        for group in range(metadata.num_row_groups):
            for column in map(metadata.row_group(group).column, range(metadata.num_columns)):
                first = column.dictionary_page_offset or column.data_page_offset
                free -= set(range(first, first + column.total_compressed_size))
        return free

    def read(self, data: bytes | bytearray) -> Any:
        return self.recording(data).value()

    def recording(self, data: bytes | bytearray) -> rolltape.Recording:
        return rolltape.Recording(self._keep(bytearray(data)), KEY)

    def part(self, name: str, samples: slice) -> Callable[[bytes | bytearray], Any]:
        """A reader of some samples of one column."""
        return lambda data: self.recording(data).batch([name], samples)[name]

    def flip(self, bits: Iterator[int] | range, read: Callable[[Any], Any] | None = None) -> None:
        """Flip one bit after the other, each alone."""
        expected = self._whole if read is None else digest(read(self.data))
        data = bytearray(self.data)
        for bit in bits:
            data[bit // 8] ^= 1 << bit % 8
            if not self._is_detected(data, read or self.read, expected, f"bit {bit}") and read is None:
                self._verify(data, bit)
            data[bit // 8] ^= 1 << bit % 8
        assert data == self.data

    def _verify(self, data: bytearray, bit: int) -> None:
        """What nobody asked for just now (the identities) is not looked at; ``verify`` looks at it all."""
        if bit // 8 not in self.unused:
            with pytest.raises(DETECTED):
                self.recording(data).verify()
            self.outcomes["detected by verify"] += 1

    def try_damaged(self, data: bytes | bytearray, what: str) -> bool:
        """Read a file damaged in another way; whether that was detected."""
        return self._is_detected(data, self.read, self._whole, what)

    def _is_detected(self, data: Any, read: Callable[[Any], Any], expected: str, what: str) -> bool:
        """Whether the damage is detected; it is an error if it is not and the data are other ones."""
        try:
            found = digest(read(data))
        except DETECTED as error:
            if error.where != f"{self.location}/{KEY.path}":
                raise AssertionError(f"{what}: the error does not name the file") from error
            self.outcomes["detected"] += 1
            return True
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__qualname__} instead of CorruptFileError") from error
        assert found == expected, f"{what}: wrong data were returned"
        self.outcomes["harmless"] += 1
        return False


@contextmanager
def bounded(seconds: int = 300, memory: int = 2**30) -> Iterator[None]:
    """No hang, and no allocation by what a damaged length says: it would fail here with ``MemoryError``."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + memory, hard))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
