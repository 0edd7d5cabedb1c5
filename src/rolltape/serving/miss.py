"""Why no recording answers a request: the nearest one, and the first place where it differs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from rolltape.reader.visible import visible
from rolltape.serving.asked import Asked, BadBody, Naming, keys_of, parse_body, pieces_of
from rolltape.serving.dialects import Dialect, Request
from rolltape.serving.lookup import Lookup, Slot
from rolltape.serving.secrets import without_secrets

MOST_COMPARED = 256
"""How many recordings that begin alike are looked at, letter by letter."""

AROUND = 40
"""Letters shown on each side of a difference."""


@dataclass(frozen=True, slots=True)
class Miss:
    """What is told to the client, and to whoever looks."""

    reason: str
    """In a sentence."""
    kind: str
    """What differs: ``prompt``, ``settings``, ``weights``, ``step``, ``exhausted``, ``unknown``."""
    nearest: Mapping[str, Any] | None = None
    """The recording that comes nearest: step, session, turn, arrival."""
    differs: Mapping[str, Any] = field(default_factory=dict)
    """Where it differs first, and both values there."""

    def to_json(self) -> dict[str, Any]:
        return {
            "reason": self.reason,
            "kind": self.kind,
            "nearest": None if self.nearest is None else dict(self.nearest),
            "differs": dict(self.differs),
        }


def explain(lookup: Lookup, asked: Asked, naming: Naming, step: int | None, weights: str) -> Miss:
    """Why none of the recordings answers this request."""
    same = lookup.same_body(asked)
    if same:
        return _spent(same, asked, step, weights)
    nearest = _nearest(lookup, asked, naming)
    if nearest is None:
        return Miss(f"nothing like it was recorded: {asked.method} {asked.path}", "unknown")
    return _compared(lookup, nearest, asked)


def _spent(same: list[Slot], asked: Asked, step: int | None, weights: str) -> Miss:
    """The very body was recorded, but for another session, step or weights, or it was asked for too often."""
    nearest = _where(same[0])
    own = [slot for slot in same if asked.session is None or slot.session == asked.session] or same
    in_step = [slot for slot in own if step in (None, slot.step)]
    if not in_step:
        steps = sorted({slot.step for slot in own})
        return Miss(
            f"it was recorded at step {steps[0]}, and this is step {step}", "step", nearest,
            {"step": {"recorded": steps, "asked": step}},
        )  # fmt: skip
    fitting = [slot for slot in in_step if slot.weights == weights]
    if not fitting:
        found = sorted({slot.weights for slot in in_step})
        return Miss(
            f"it was recorded with other weights: version {found[0]!r}, and these are {weights!r}", "weights",
            nearest, {"weights": {"recorded": found, "asked": weights}},
        )  # fmt: skip
    times = "once" if len(fitting) == 1 else f"{len(fitting)} times"
    return Miss(
        f"it was recorded {times}, and every recording of it has been given out", "exhausted", nearest,
        {"recorded": len(fitting), "asked": len(fitting) + 1},
    )  # fmt: skip


def _nearest(lookup: Lookup, asked: Asked, naming: Naming) -> Slot | None:
    """The recorded call that shares the longest beginning with what is asked; the session's own first."""
    try:
        body = parse_body(asked.body)
        prefixes = keys_of(asked.method, asked.path, body, naming).prefixes
    except BadBody:
        body, prefixes = None, ()
    target = f"{asked.method} {asked.path.rstrip('/')}"
    ranked: dict[tuple[bool, int], dict[bytes, Slot]] = {}
    for slot, shared in lookup.shared(prefixes):
        if slot.target.partition("?")[0] != target:
            continue
        own = asked.session is not None and slot.session == asked.session
        same = ranked.setdefault((own, shared), {})
        if slot.body not in same or (same[slot.body].given and not slot.given):
            same[slot.body] = slot
    if not ranked:
        return None
    best = list(islice(ranked[max(ranked)].values(), MOST_COMPARED))
    return max(best, key=lambda slot: (*_likeness(lookup, slot, asked, body), not slot.given, -slot.arrival))


def _likeness(lookup: Lookup, slot: Slot, asked: Asked, body: Any) -> tuple[int, int]:
    """How much of what is asked a recording has at its beginning, and in how few settings it differs."""
    try:
        theirs = parse_body(lookup.request_body(slot))
    except BadBody:
        return -1, 0
    if asked.dialect is None or not isinstance(body, dict) or not isinstance(theirs, dict):
        return -1, 0
    place = first_difference(asked.dialect.request(theirs), asked.dialect.request(body))
    if place is None:
        return sys.maxsize, -len(_fields(asked.dialect, theirs, body))
    counted = (place.get(name) for name in ("message", "prompt", "token", "letter"))
    weights = (10**12, 10**12, 1, 1)
    found = [at * weight for at, weight in zip(counted, weights, strict=True) if at is not None]
    return sum(found) if found else -1, 0


def _compared(lookup: Lookup, slot: Slot, asked: Asked) -> Miss:
    nearest = _where(slot)
    try:
        data = asked.dialect.reads if asked.dialect else ()
        mine = without_secrets(parse_body(asked.body), data)
        theirs = parse_body(lookup.request_body(slot))
    except BadBody as error:
        return Miss(str(error), "unknown", nearest)
    if not isinstance(mine, dict) or not isinstance(theirs, dict) or asked.dialect is None:
        return Miss("its body differs from the recorded one", "prompt", nearest)
    place = first_difference(asked.dialect.request(theirs), asked.dialect.request(mine))
    if place is not None:
        return Miss(f"the prompt differs from the recorded one: {place['at']}", "prompt", nearest, place)
    fields = _fields(asked.dialect, theirs, mine)
    named = ", ".join(f"{name} ({_short(a)} recorded, {_short(b)} asked)" for name, (a, b) in fields.items())
    return Miss(
        f"the settings differ from the recorded ones: {named}", "settings", nearest,
        {name: {"recorded": a, "asked": b} for name, (a, b) in fields.items()},
    )  # fmt: skip


def first_difference(recorded: Request, asked: Request) -> dict[str, Any] | None:
    """The first message, token or letter in which two prompts differ; None where they do not."""
    if recorded.messages is not None and asked.messages is not None:
        return _in_messages(recorded.messages, asked.messages)
    ours, theirs = recorded.prompt, asked.prompt
    if ours == theirs:
        return None
    if isinstance(ours, str) and isinstance(theirs, str):
        return _in_text("the prompt", ours, theirs)
    if _are_tokens(ours) and _are_tokens(theirs):
        return _in_tokens("", ours, theirs)
    if isinstance(ours, list) and isinstance(theirs, list):
        return _in_list(ours, theirs)
    if pieces_of(recorded) == pieces_of(asked):
        return None
    return {"at": "its kind", "recorded": _short(ours), "asked": _short(theirs)}


def _in_messages(recorded: list[Any], asked: list[Any]) -> dict[str, Any] | None:
    for at, (ours, theirs) in enumerate(zip(recorded, asked, strict=False)):
        if ours == theirs:
            continue
        role = theirs.get("role", "?") if isinstance(theirs, Mapping) else "?"
        name = f"message {at} ({visible(str(role))})"
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            was, now = ours.get("content"), theirs.get("content")
            if isinstance(was, str) and isinstance(now, str) and was != now:
                return {"message": at, **_in_text(name, was, now)}
            keys = [key for key in [*ours, *theirs] if ours.get(key) != theirs.get(key)]
            field_name = visible(str(keys[0])) if keys else "?"
            return {
                "at": f"{name}, field {field_name}", "message": at,
                "recorded": _short(ours.get(keys[0]) if keys else ours),
                "asked": _short(theirs.get(keys[0]) if keys else theirs),
            }  # fmt: skip
        return {"at": name, "message": at, "recorded": _short(ours), "asked": _short(theirs)}
    if len(recorded) != len(asked):
        at = min(len(recorded), len(asked))
        return {
            "at": f"message {at}: {len(recorded)} messages were recorded, {len(asked)} are asked",
            "message": at, "recorded": len(recorded), "asked": len(asked),
        }  # fmt: skip
    return None


def _in_text(name: str, recorded: str, asked: str) -> dict[str, Any]:
    at = next((i for i, (a, b) in enumerate(zip(recorded, asked, strict=False)) if a != b), None)
    at = min(len(recorded), len(asked)) if at is None else at
    said = [f"“{shown}”" if (shown := _around(text, at)) else "nothing" for text in (recorded, asked)]
    return {
        "at": f"{name}, letter {at}: {said[0]} was recorded, {said[1]} is asked",
        "letter": at, "recorded": _around(recorded, at), "asked": _around(asked, at),
    }  # fmt: skip


def _in_tokens(name: str, recorded: list[int], asked: list[int]) -> dict[str, Any]:
    at = next((i for i, (a, b) in enumerate(zip(recorded, asked, strict=False)) if a != b), None)
    at = min(len(recorded), len(asked)) if at is None else at
    was = recorded[at] if at < len(recorded) else None
    now = asked[at] if at < len(asked) else None
    said = ["no token" if token is None else str(token) for token in (was, now)]
    return {
        "at": f"{name}token {at}: {said[0]} was recorded, {said[1]} is asked", "token": at,
        "recorded": was, "asked": now,
    }  # fmt: skip


def _in_list(recorded: list[Any], asked: list[Any]) -> dict[str, Any]:
    for at, (ours, theirs) in enumerate(zip(recorded, asked, strict=False)):
        if ours == theirs:
            continue
        if isinstance(ours, str) and isinstance(theirs, str):
            return {"prompt": at, **_in_text(f"prompt {at}", ours, theirs)}
        if _are_tokens(ours) and _are_tokens(theirs):
            return {"prompt": at, **_in_tokens(f"prompt {at}, ", ours, theirs)}
        return {"at": f"prompt {at}", "prompt": at, "recorded": _short(ours), "asked": _short(theirs)}
    return {
        "at": f"{len(recorded)} prompts were recorded, {len(asked)} are asked",
        "recorded": len(recorded), "asked": len(asked),
    }  # fmt: skip


def _fields(
    dialect: Dialect, recorded: Mapping[str, Any], asked: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    names = [name for name in dict.fromkeys([*recorded, *asked]) if name not in dialect.volatile]
    return {
        visible(name): (recorded.get(name), asked.get(name))
        for name in names
        if recorded.get(name) != asked.get(name)
    }


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value[:64])


def _where(slot: Slot) -> dict[str, Any]:
    return {
        "step": slot.step, "session": slot.session, "turn": slot.turn, "arrival": slot.arrival,
        "given": slot.given,
    }  # fmt: skip


def _around(text: str, at: int) -> str:
    start, stop = max(at - AROUND // 2, 0), at + AROUND
    shown = visible(text[start:stop])
    return f"{'…' if start else ''}{shown}{'…' if stop < len(text) else ''}" if shown else ""


def _short(value: Any) -> str:
    text = visible(value if isinstance(value, str) else repr(value))
    return text if len(text) <= 2 * AROUND else text[: 2 * AROUND] + "…"
