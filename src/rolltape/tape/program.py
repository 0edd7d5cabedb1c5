"""Which program began a tape: the command that started it, and the commit of the code beside it.

Read from this process and from the files of ``.git``; nothing is started, and what could be a password in an
argument is left out.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

LONGEST_ARGUMENT = 300
MOST_ARGUMENTS = 400
HIDDEN = "***"
SECRET_WORDS = {
    "key", "apikey", "token", "secret", "password", "passwd", "credential", "credentials", "auth",
}  # fmt: skip
"""Words of an option's name after which its value is nobody's business."""
_LIKE_A_SECRET = re.compile(r"(sk-|hf_|ghp_|github_pat_|glpat-|xox[abp]-|AKIA)[\w-]{8,}")
_USER_OF_A_URL = re.compile(r"(\w://)[^/@\s]+@")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


def program() -> dict[str, str]:
    """What is known of the program that runs: ``command``, and ``commit`` where it lies in a repository."""
    found = {"command": shown_command(sys.orig_argv)}
    script = Path(sys.argv[0]).parent if sys.argv and sys.argv[0] not in ("", "-c", "-m") else Path()
    with suppress(OSError, ValueError):
        commit = commit_of(script.resolve()) or commit_of(Path.cwd())
        if commit is not None:
            found["commit"] = commit
    return found


def shown_command(arguments: Sequence[str]) -> str:
    """A command as one types it, without what could be a secret.

    >>> shown_command(["python", "train.py", "--api-key", "abc", "max_tokens=512", "s3://me:pw@b/x"])
    "python train.py --api-key '***' max_tokens=512 's3://***@b/x'"
    """
    shown = list(_without_secrets(arguments[:MOST_ARGUMENTS]))
    more = len(arguments) - len(shown)
    return shlex.join(shown) + (f" … and {more} more" if more else "")


def _without_secrets(arguments: Sequence[str]) -> Iterator[str]:
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide_next and not argument.startswith("-"):
            yield HIDDEN
        elif equals and _is_secret(name):
            yield f"{name}={HIDDEN}"
        else:
            clean = _LIKE_A_SECRET.sub(HIDDEN, _USER_OF_A_URL.sub(rf"\1{HIDDEN}@", argument))
            yield clean if len(clean) <= LONGEST_ARGUMENT else clean[:LONGEST_ARGUMENT] + "…"
        hide_next = not equals and argument.startswith("-") and _is_secret(argument)


def _is_secret(name: str) -> bool:
    return not SECRET_WORDS.isdisjoint(re.split(r"[^a-z]+", name.rsplit("/", 1)[-1].lower()))


def commit_of(folder: Path) -> str | None:
    """The commit that is checked out in the repository around a folder; None where there is none."""
    for parent in (folder, *folder.parents):
        entry = parent / ".git"
        if entry.is_dir():
            return _head(entry, entry)
        if entry.is_file():  # a worktree or a submodule says where its own part is
            own = parent / _text(entry).removeprefix("gitdir:").strip()
            common = own / "commondir"
            return _head(own, own / _text(common) if common.is_file() else own)
    return None


def _head(own: Path, common: Path) -> str | None:
    head = _text(own / "HEAD")
    if not head.startswith("ref:"):
        return _whole(head)
    name = head.removeprefix("ref:").strip()
    for place in (own / name, common / name):
        if place.is_file():
            return _whole(_text(place))
    packed = common / "packed-refs"
    lines = _text(packed).splitlines() if packed.is_file() else []
    found = (line.partition(" ") for line in lines if not line.startswith(("#", "^")))
    return next((_whole(commit) for commit, _, ref in found if ref.strip() == name), None)


def _whole(text: str) -> str | None:
    return text if _COMMIT.fullmatch(text) else None


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(1 << 22).decode(errors="replace").strip()
