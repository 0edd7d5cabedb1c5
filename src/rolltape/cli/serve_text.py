"""What a server has done, in a few lines."""

from __future__ import annotations

from typing import Any

from rolltape.tape.summary import amount


def summary_text(summary: dict[str, Any]) -> str:
    """The summary in a few lines."""
    calls = summary["calls"]
    words = {"replayed": "from the tape", "live": "live", "recorded": "recorded", "missed": "missed",
             "retried": "sent again", "aborted": "broken off", "failed": "unreachable"}  # fmt: skip
    counted = [f"{calls[name]:,} {word}" for name, word in words.items() if calls[name]]
    lines = [", ".join([_many(calls["asked"], "call"), *counted])]
    levels = {name: n for name, n in summary["levels"].items() if n and name != "control"}
    if levels:
        exact = {"identity": "the recorded slot", "conversation": "by the conversation so far",
                 "content": "by content: each group is exact as a whole"}  # fmt: skip
        lines.append("found: " + ", ".join(f"{n:,} {exact[name]}" for name, n in levels.items()))
    if (content := summary["by_content"])["calls"]:
        lines.append(
            f"by content, no replay of their step: {_many(content['calls'], 'call')} of "
            f"{_many(content['samples'], 'recorded sample')}, {content['generated']:,} generated"
        )
    if summary["gate"]["let_go"]:
        lines.append(f"order: not waited for any longer: {_many(summary['gate']['let_go'], 'recorded call')}")
    if summary["unplayed"] and summary["mode"] == "replay":
        lines.append(f"never asked for: {_many(summary['unplayed'], 'recorded call')}")
    for name, n in summary["differs"].items():
        lines.append(f"{name} differed from the recording in {_many(n, 'call')}")
    lines += [f"missed: {miss['reason']}" for miss in summary["misses"][-3:]]
    if (waiting := summary["waiting"])["files"]:
        kept = f"safe in {waiting['where']}; rolltape drain takes them there"
        lines.append(f"NOT UP YET: {_many(waiting['files'], 'file')} ({amount(waiting['bytes'])}), {kept}")
    if summary["failure"]:
        lines.append(f"recording failed: {summary['failure']}")
    return "\n".join(lines)


def _many(number: int, what: str) -> str:
    """
    >>> _many(1, "call"), _many(100_000, "call")
    ('1 call', '100,000 calls')
    """
    return f"{number:,} {what}" + ("" if number == 1 else "s")
