"""Which change first makes a replay diverge: a commit of a repository, or some of several flags.

What to try next is decided by pure functions (``choosing``, ``minimizing``); what a trial says, by the one
comparison of two tapes. The user's working tree, index and refs are never written.
"""

from rolltape.bisecting.bisect_error import BisectError
from rolltape.bisecting.by_commit import FoundCommit, bisect_commits
from rolltape.bisecting.by_flag import CONFIG, OVERRIDES, FoundFlags, bisect_flags
from rolltape.bisecting.differences import Difference, file_differences, given_words
from rolltape.bisecting.repository import Commit, Repository
from rolltape.bisecting.trial import Outcome, Question, Trial
from rolltape.bisecting.trial_cache import default_cache
from rolltape.bisecting.trials import Tried, Watcher

__all__ = [
    "CONFIG", "OVERRIDES", "BisectError", "Commit", "Difference", "FoundCommit", "FoundFlags", "Outcome",
    "Question", "Repository", "Trial", "Tried", "Watcher", "bisect_commits", "bisect_flags", "default_cache",
    "file_differences", "given_words",
]  # fmt: skip
