"""What ``doctor`` finds out about this machine and a directory; each probe leaves no trace."""

from __future__ import annotations

import os
import platform
import shlex
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata

from rolltape import cpu_probe
from rolltape._version import __version__
from rolltape.determinism import WATCHED
from rolltape.errors import RolltapeError, TapeReadOnlyError
from rolltape.reader.listing import is_tape
from rolltape.reader.run import open
from rolltape.reader.wording import counted, seconds
from rolltape.releases import standing
from rolltape.settings import resolve
from rolltape.storage import absolute, is_url, posix, storage_at
from rolltape.tape.open_samples import open_calls
from rolltape.tape.opening import RAY_SESSION, spool_of
from rolltape.tape.summary import amount

NEEDED = ("numpy", "pyarrow", "click", "rich")
OPTIONAL = (
    "torch tensordict transformers verl trl roll slime miles vllm sglang ray omegaconf PyYAML pillow".split()
)

LOW_SPACE = 1_000_000_000
SLOW_SYNC = 0.1

MEANINGS = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8 or :16:8 makes cuBLAS repeat its sums in the same order",
    "NCCL_ALGO": "a fixed algorithm (Ring or Tree) fixes the order in which ranks are summed",
    "NCCL_PROTO": "a fixed protocol (Simple) goes with a fixed NCCL_ALGO",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0 keeps Transformer Engine to deterministic attention kernels",
    "DETERMINISTIC_MODE": "1 makes ROLL switch PyTorch to deterministic algorithms",
    "PYTHONHASHSEED": "a fixed number fixes the order of Python sets in every process",
    "VLLM_BATCH_INVARIANT": "1 makes vLLM's results independent of what else is in the batch",
    "OMP_NUM_THREADS": "a fixed number fixes how CPU sums are split over threads",
    "MKL_NUM_THREADS": "the same for Intel MKL",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing found out."""

    topic: str
    name: str
    value: str
    note: str = ""
    """What it means."""
    attention: str | None = None
    """What should be done about it; None if it is well."""


def versions() -> Iterator[Fact]:
    """What is installed, asked of the packages' metadata: nothing is imported."""
    yield Fact("versions", "rolltape", __version__)
    yield Fact("versions", "python", platform.python_version(), f"{platform.system()} {platform.machine()}")
    for name in (*NEEDED, *OPTIONAL):
        try:
            yield _release(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            if name in NEEDED:
                yield Fact("versions", name, "not found", attention=f"pip install {name}")


def _release(name: str, version: str) -> Fact:
    """An installed release, and whether it is tested, expected to work or refused."""
    known = standing(name, version)
    if known is None:
        return Fact("versions", name, version)
    word, why = known
    note = f"{word}: {why}" if why else word
    concerns = word == "refused" and not why.startswith("by ")  # an engine that may not be in use
    return Fact("versions", name, version, note, attention=note if concerns else None)


def processor(environ: Mapping[str, str]) -> Iterator[Fact]:
    """Whether torch, where there is one, can multiply bf16 matrices here: tried in a process of its own."""
    if not cpu_probe.has_torch():
        return
    topic, name, found = "processor", "bf16 in torch", cpu_probe.find()
    if found.failed:
        broken = "torch is installed and does not work"
        yield Fact(topic, name, f"not tried: {found.failed}", attention=broken)
    elif found.died_by:
        cause = "the CPU announces instructions that its host does not grant"
        cure = f"export {cpu_probe.VARIABLE}={found.limit}"
        if found.limit is None:
            cure = f"no limit in {cpu_probe.VARIABLE} helps, keep to float32 on this machine"
        yield Fact(topic, name, f"ends with {found.died_by}", cause, attention=cure)
    else:
        limit = environ.get(cpu_probe.VARIABLE)
        yield Fact(topic, name, "works", f"under {cpu_probe.VARIABLE}={limit}" if limit else "")


def place(directory: str) -> Iterator[Fact]:
    """Whether a tape can be kept here."""
    path = absolute(directory)
    if is_url(path):
        yield from _in_a_store(path)
        return
    yield _kind(path)
    yield from _open_steps(path)
    if RAY_SESSION.search(f"{path}/"):
        hint = "Ray removes this folder, and other runs cannot find it; record to a directory elsewhere"
        yield Fact("tape", "Ray session", "inside one", attention=hint)
    parent = path
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    free = posix.free_bytes(parent)
    low = f"less than {amount(LOW_SPACE)}: free some space before you record" if free < LOW_SPACE else None
    yield Fact("tape", "free space", amount(free), attention=low)
    yield _writability(parent)


def _open_steps(path: str) -> Iterator[Fact]:
    """What has finished of steps that are not recorded."""
    if is_tape(path):
        for one in open_calls(storage_at(path)):
            note = (
                "a leftover: rolltape prune removes it" if one.recorded else "a resumed run makes the others"
            )
            yield Fact("tape", "open step", str(one), note)


def _in_a_store(url: str) -> Iterator[Fact]:
    """Whether a tape can be kept in a store: it is asked, and a small object is put and deleted."""
    storage = storage_at(url)
    try:
        yield _kind_of(url) if is_tape(url) else Fact("tape", "store", url, "no tape yet")
        yield from _open_steps(url)
        started = time.perf_counter()
        storage.check_writable()
    except TapeReadOnlyError as error:
        hint = "replaying works; to record, use credentials that may write"
        yield Fact("tape", "writable", f"no: {error.what}", attention=hint)
    except RolltapeError as error:
        yield Fact("tape", "store", url, attention=_said(error))
    else:
        took = time.perf_counter() - started
        yield Fact("tape", "writable", f"yes, two requests take {took * 1000:.0f} ms")


def spooled(environ: Mapping[str, str]) -> Iterator[Fact]:
    """What waits on this machine for an object store."""
    try:
        spool = spool_of(resolve({"dir": "."}, environ))
    except RolltapeError:  # told among the settings
        return
    for url, waiting in sorted(spool.waiting().items()):
        value = f"{counted(waiting.files, 'file')}, {amount(waiting.nbytes)}, for {url}"
        age = seconds(max(time.time() - waiting.oldest, 0))
        yield Fact(
            "spool", "not up yet", value, f"the oldest since {age}",
            attention=f"if no run is writing to it now: rolltape drain {shlex.quote(url)}",
        )  # fmt: skip


def _kind(path: str) -> Fact:
    if os.path.isfile(path):
        return Fact("tape", "directory", path, attention="this is a file; choose another path")
    if not os.path.isdir(path):
        return Fact("tape", "directory", path, "will be created")
    if not is_tape(path):
        return Fact("tape", "directory", path, "no tape yet")
    return _kind_of(path)


def _kind_of(path: str) -> Fact:
    name = "store" if is_url(path) else "directory"
    try:
        manifest = open(path).manifest
    except RolltapeError as error:
        return Fact("tape", name, path, attention=error.what)
    return Fact("tape", name, path, f"tape {str(manifest.id)[:8]}, written by {manifest.producer}")


def _writability(folder: str) -> Fact:
    """Write and sync a file that has no name, and see how long the disk takes."""
    took = []
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for _ in range(5):
                file.write(os.urandom(4096))
                file.flush()
                started = time.perf_counter()
                os.fsync(file.fileno())
                took.append(time.perf_counter() - started)
    except OSError as error:
        hint = "replaying works; to record, choose a directory that can be written"
        return Fact("tape", "writable", f"no: {error.strerror}", attention=hint)
    median = statistics.median(took)
    slow = "slow: every recording waits that long in the background; a local disk is faster"
    value = f"yes, fsync takes {median * 1000:.1f} ms"
    return Fact("tape", "writable", value, attention=slow if median > SLOW_SYNC else None)


def settings(environ: Mapping[str, str]) -> Iterator[Fact]:
    """The ROLLTAPE_* variables in force, and whether they can be understood."""
    wrong: RolltapeError | None = None
    try:
        resolve({}, environ)
    except RolltapeError as error:
        wrong = error
    for name in sorted(environ):
        if name.startswith("ROLLTAPE_"):
            blamed = wrong if wrong is not None and name in (wrong.where or "").split() else None
            yield Fact("settings", name, environ[name], attention=_said(blamed) if blamed else None)
            wrong = None if blamed else wrong
    if wrong is not None:
        yield Fact("settings", "together", wrong.where or "ROLLTAPE_*", attention=_said(wrong))


def _said(error: RolltapeError) -> str:
    return f"{error.what}; {error.hint}" if error.hint else error.what


def determinism(environ: Mapping[str, str], directory: str) -> Iterator[Fact]:
    """The flags that decide whether two runs can agree bit for bit: none is an error by itself."""
    recorded: Mapping[str, str] = {}
    with suppress(RolltapeError):
        recorded = open(directory).manifest.environment
    for name in WATCHED:
        here, then = environ.get(name, ""), recorded.get(name, "")
        value = here or "not set"
        if recorded and here != then:
            value += f" (on the tape: {then or 'not set'})"
        yield Fact("determinism", name, value, MEANINGS.get(name, ""))
