"""Git, by its own command: revisions, what a commit changes, and its bisect in a working tree of its own.

Only what git keeps about working trees is written, and taken away again: never the user's files, index, HEAD,
refs or stash. (Git's bisect may write the file ``packed-refs`` anew, with the same refs in it.) Hooks do not
run, and what a hook of the caller says in GIT_DIR and the like is not heeded.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rolltape.bisecting.bisect_error import BisectError
from rolltape.bisecting.choosing import Candidate

_LOCAL = frozenset(
    """GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES
    GIT_COMMON_DIR GIT_PREFIX GIT_NAMESPACE GIT_SUPER_PREFIX GIT_INTERNAL_SUPER_PREFIX GIT_SHALLOW_FILE
    GIT_GRAFT_FILE GIT_CONFIG GIT_CONFIG_PARAMETERS GIT_CONFIG_COUNT GIT_IMPLICIT_WORK_TREE
    GIT_REPLACE_REF_BASE GIT_NO_REPLACE_OBJECTS GIT_QUARANTINE_PATH GIT_REFLOG_ACTION GIT_EDITOR
    GIT_EXTERNAL_DIFF GIT_LITERAL_PATHSPECS GIT_GLOB_PATHSPECS GIT_NOGLOB_PATHSPECS GIT_ICASE_PATHSPECS
    GIT_CEILING_DIRECTORIES GIT_DEFAULT_HASH GIT_DIFF_OPTS""".split()
)
"""What a hook, an alias or a caller says about the repository that they were started in."""
_OPTIONS = (
    "color.ui=false", "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.quotePath=false",
    "advice.detachedHead=false", "gc.auto=0", "maintenance.auto=false", "log.showSignature=false",
    "i18n.logOutputEncoding=UTF-8", "submodule.recurse=false",
)  # fmt: skip
LONGEST_DIFF = 400_000
"""Bytes of a diff that are read."""


def without_git(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what it says about a repository.

    >>> without_git({"GIT_DIR": "x", "GIT_SSH": "y", "HOME": "z"})
    {'GIT_SSH': 'y', 'HOME': 'z'}
    """
    said = ("GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_")
    return {k: v for k, v in environ.items() if k not in _LOCAL and not k.startswith(said)}


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit, as people know it."""

    id: str
    tree: str
    """The id of its files: two commits with the same files have the same."""
    parents: tuple[str, ...]
    author: str
    date: str
    """When it was made, as ISO 8601."""
    subject: str

    def __str__(self) -> str:
        return f"{self.id[:10]} {self.subject}".rstrip()


class Repository:
    """The repository that a folder is in."""

    def __init__(self, folder: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> None:
        self.folder = os.path.abspath(folder)
        self.environ = {**without_git(environ), "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
        # One at a time: a path may have a line end in it.
        common, prefix = (self.git("rev-parse", f"--{what}") for what in ("git-common-dir", "show-prefix"))
        self.common = os.path.realpath(os.path.join(self.folder, common.removesuffix("\n")))
        self.prefix = prefix.removesuffix("\n").rstrip("/")
        """The user's folder, as seen from the top of the working tree."""

    def git(self, *words: str, folder: str | None = None, allowed: Iterable[int] = (0,)) -> str:
        """What a command of git prints."""
        done = self._run(words, folder)
        if done.returncode not in allowed:
            said = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
            raise BisectError(f"git {words[0]} failed: {said}", where=folder or self.folder)
        return done.stdout.decode("utf-8", "replace")

    def _run(self, words: Sequence[str], folder: str | None) -> subprocess.CompletedProcess[bytes]:
        options = [word for option in _OPTIONS for word in ("-c", option)]
        command = ["git", "-C", folder or self.folder, *options, *words]
        try:
            return subprocess.run(command, env=self.environ, stdin=subprocess.DEVNULL, capture_output=True)
        except FileNotFoundError:
            raise BisectError("there is no command `git`", hint="install git, or use --flags") from None

    def commit(self, revision: str) -> Commit:
        """The commit that a revision names."""
        if not revision or revision.startswith("-") or "\0" in revision:
            raise BisectError(f"{revision!r} is not a revision", hint="name a commit, a branch or a tag")
        name = self._named(revision)
        name = self._named(f"{name}^{{commit}}") if name else ""  # by itself: ":/text" takes all that follows
        if not name:
            shallow = self.git("rev-parse", "--is-shallow-repository").strip() == "true"
            raise BisectError(
                f"there is no commit {revision!r}",
                where=self.folder,
                causes=["the clone is shallow"] if shallow else [],
                hint="git fetch --unshallow" if shallow else "git log has those that there are",
            )
        form = "%H%x00%T%x00%P%x00%an%x00%aI%x00%s"
        found = self.git("show", "-s", f"--format={form}", name, "--").rstrip("\n").split("\0")
        id_, tree, parents, author, date, subject = found
        return Commit(id_, tree, tuple(parents.split()), author, date, subject)

    def _named(self, revision: str) -> str:
        """The id of what a revision names; empty where it names nothing, or all but something."""
        done = self._run(["rev-parse", "--verify", "--quiet", revision], None)
        name = done.stdout.decode("utf-8", "replace").strip()
        return "" if done.returncode or name.startswith("^") else name

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Whether one commit is behind the other, or the same."""
        return self._run(["merge-base", "--is-ancestor", older, newer], None).returncode == 0

    def merge_bases(self, one: str, other: str) -> list[str]:
        """The last commits that two have in common; empty if they have none."""
        return self.git("merge-base", "--all", one, other, allowed=(0, 1)).split()

    def has_submodules(self, commit: str) -> bool:
        """Whether the files of a commit have other repositories among them."""
        return self._run(["cat-file", "-e", f"{commit}:.gitmodules"], None).returncode == 0

    def diff(self, commit: Commit, *, stat: bool = False) -> str:
        """What a commit changes, against its first parent; cut where it is very long."""
        form = ["--stat=76", "--summary"] if stat else ["--patch"]
        words = ["show", "--format=", "-m", "--first-parent", "--no-ext-diff", "--no-textconv", *form]
        text = self.git(*words, commit.id, "--")
        return text if len(text) <= LONGEST_DIFF else text[:LONGEST_DIFF].rpartition("\n")[0] + "\n…\n"

    def changes(self) -> str:
        """Names the tracked files as they are now, committed or not."""
        head = self.git("rev-parse", "--verify", "--quiet", "HEAD^{tree}", allowed=(0, 1))
        words = ["diff", "--binary", "--no-ext-diff", "--no-textconv", *(["HEAD"] if head.strip() else [])]
        return head.strip() + hashlib.sha256(self.git(*words, "--").encode()).hexdigest()


class WorkTree:
    """A working tree of its own, in which git's bisect runs; gone when the search is over.

    One that a killed search left behind is removed by the next, once its last command has ended too.
    """

    def __init__(self, repository: Repository, cache: Path, commit: str) -> None:
        self.repository = repository
        self._commit = commit
        name = hashlib.sha256(repository.common.encode()).hexdigest()[:16]
        self._room = cache / "trees" / name
        self.path = ""
        self.lock = -1
        """An open file, locked as long as a process of this search has it."""

    def __enter__(self) -> WorkTree:
        self._room.mkdir(parents=True, exist_ok=True)
        for old in self._room.glob("*.lock"):
            self._sweep(old)
        self.lock, lock = tempfile.mkstemp(dir=self._room, suffix=".lock")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.path = lock.removesuffix(".lock")
        try:
            words = ["worktree", "add", "--quiet", "--detach", "--no-checkout", self.path, self._commit]
            self.repository.git(*words)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove(self.path)
        os.close(self.lock)

    def _sweep(self, lock: Path) -> None:
        """Remove what a killed search left behind; nothing of one that still runs."""
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._remove(str(lock).removesuffix(".lock"))
        except OSError:
            pass
        finally:
            os.close(descriptor)

    def _remove(self, path: str) -> None:
        """Take a working tree away, and all that git knows of it."""
        words = ["worktree", "remove", "--force", "--force", path]
        if self.repository._run(words, None).returncode:  # half made, or it has submodules
            for entry in Path(self.repository.common, "worktrees").glob("*/gitdir"):
                with suppress(OSError):
                    if entry.read_text().strip() == os.path.join(os.path.realpath(path), ".git"):
                        shutil.rmtree(entry.parent)
            with suppress(OSError):  # of others too, or not there
                os.rmdir(os.path.join(self.repository.common, "worktrees"))
            shutil.rmtree(path, ignore_errors=True)
        with suppress(FileNotFoundError):
            os.unlink(f"{path}.lock")

    def git(self, *words: str, allowed: Iterable[int] = (0,)) -> str:
        """What a command of git prints in this working tree."""
        return self.repository.git(*words, folder=self.path, allowed=allowed)

    def check_out(self, commit: str) -> str:
        """Have the files of a commit, and no others; the user's folder among them."""
        self.git("checkout", "--quiet", "--force", "--detach", commit, "--")
        self.git("clean", "-ffdxq")
        return os.path.join(self.path, self.repository.prefix) if self.repository.prefix else self.path

    def start(self, good: Sequence[str], bad: str) -> None:
        """Begin git's bisect."""
        self.git("bisect", "start", "--no-checkout", bad, *good, "--", allowed=(0, 2))

    def mark(self, word: str, commit: str) -> None:
        """Tell git's bisect that a commit is ``good`` or ``bad``, or to ``skip`` it."""
        self.git("bisect", word, commit, allowed=(0, 2))  # 2: only commits are left that were skipped

    def candidates(self) -> list[Candidate]:
        """The commits of which one is the first bad one, as git's bisect stands; the last first."""
        words = ["rev-list", "--topo-order", "--parents", "refs/bisect/bad", "--not"]
        lines = self.git(*words, "--glob=refs/bisect/good-*", "--").splitlines()
        return [Candidate(one, tuple(parents)) for one, *parents in map(str.split, lines)]
