"""What is shared keeps its shape and who is equal to whom, and nothing of what it was recorded from."""

import base64
import json
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import rolltape
from rolltape.batch import dismantle
from rolltape.codec.identity import identify
from tests.cli_tapes import run

SECRETS = [
    "What is the launch code of Alice?",
    "Tell me about project Bluebird",
    "Tell me about project Bluebird",
]
ANSWERS = ["It is 0451-swordfish.", "Bluebird is secret\nfor now", "No."]
TOKENS = np.array([[77, 77, 31007, 9150], [77, 20411, 4242, 31007], [77, 20411, 4242, 31007]])
PICTURES = np.arange(3 * 8 * 8 * 3).reshape(3, 8, 8, 3).astype(np.uint8)
PICTURES[2] = PICTURES[1]


@dataclass
class Sample:
    prompt: str
    tokens: np.ndarray
    reward: float


def chat(text):
    return [{"role": "user", "content": text}, {"role": "assistant", "content": {"parts": [text.upper()]}}]


def dense():
    both = np.hstack([TOKENS, TOKENS[:, ::-1]])
    return {
        "prompts": TOKENS,
        "responses": TOKENS[:, ::-1].copy(),
        "input_ids": both,
        "attention_mask": (both != 77).astype(np.int64),
        "position_ids": np.tile(np.arange(8), (3, 1)),
        "advantages": np.linspace(0, 1, 12).reshape(3, 4),
    }


def odd():
    return {
        "uid": np.array(SECRETS),
        "when": [uuid.UUID(int=7 + at // 2) for at in range(3)],
        "mixed": [(text, {text: 1}, {text}, text.encode(), OrderedDict(a=text)) for text in SECRETS],
        "arrays": [
            {"ids": row, "texts": np.array([text])} for row, text in zip(TOKENS, SECRETS, strict=True)
        ],
        "bytes": np.array([text.encode() for text in SECRETS]),
    }


LAYOUTS = {
    "texts": lambda: {"prompt": list(SECRETS), "response": list(ANSWERS), "reward": [0.125, 1.0, 0.5]},
    "chats": lambda: {
        "messages": [chat(text) for text in SECRETS],
        "extra": [{"kept": {"x": text}} for text in ANSWERS],
    },
    "dense ids": dense,
    "ragged ids": lambda: {
        "tokens": [row[: 4 - (at == 0)].tolist() for at, row in enumerate(TOKENS)],
        "uid": list(SECRETS),
    },
    "ids of an unknown name": lambda: {
        "whatever": TOKENS.astype(np.int32),
        "deep": [{"a": {"b": row.tolist()}} for row in TOKENS],
    },
    "dataclasses": lambda: [Sample(text, row, 0.5) for text, row in zip(SECRETS, TOKENS, strict=True)],
    "pictures": lambda: {
        "image": PICTURES,
        "raw": [one.tobytes() for one in PICTURES],
        "pixel_values": PICTURES / np.float32(255),
    },
    "odd values": odd,
    "no samples": lambda: {"config": {"system_prompt": SECRETS[0], "tuple": (SECRETS[1], 3, 0.25)}},
    "one sample": lambda: {"prompt": SECRETS[0], "tokens": TOKENS[0], "reward": 0.125},
}


def leaks():
    """Every form in which what was recorded could lie in a file."""
    for text in {*SECRETS, *ANSWERS, *(text.upper() for text in SECRETS)} - {"No."}:
        yield text.encode()
        yield json.dumps(text).encode()[1:-1]
        yield text.encode("utf-32-le")
        yield base64.b64encode(text.encode())[:-3]
    for word in (b"Bluebird", b"swordfish", b"launch", b"home/alice"):
        yield word
        yield word.upper()
    for dtype in (np.int64, np.int32, np.uint16):
        for pair in (TOKENS[0, 2:], TOKENS[1, 1:3], TOKENS[1, 2:], TOKENS[0, :1:-1]):
            yield pair.astype(dtype).tobytes()
    yield b"31007, 9150"
    yield b"31007,9150"
    yield b"20411,4242"
    yield PICTURES[1].tobytes()[40:80]
    yield (PICTURES[1] / np.float32(255)).astype(np.float32).tobytes()[64:96]


def all_bytes(folder):
    """Every byte of every file as it is, and every column as Parquet readers see it."""
    for path in sorted(Path(folder).rglob("*")):
        yield str(path.relative_to(folder)).encode()
        if path.is_file():
            yield path.read_bytes()
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            for column in table.columns:
                for array in column.chunks:
                    for buffer in array.buffers():
                        yield b"" if buffer is None else buffer.to_pybytes()
            for text in (pq.read_metadata(path).metadata or {}).values():
                yield text
                for word in _strings(json.loads(text)) if text[:1] == b"{" else ():
                    yield _decoded(word)


def _strings(node):
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _strings(child)
    if isinstance(node, str):
        yield node


def _decoded(text):
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def assert_nothing_leaks(folder):
    found = list(all_bytes(folder))
    assert len(found) > 5
    for leak in leaks():
        assert not any(leak in data for data in found), leak


def record(folder, value, **options):
    fingerprint = {"model": "/home/alice/models/bluebird", "seed": 7, "dataset": {"path": SECRETS[1]}}
    with rolltape.Tape(folder, mode="record", **{"fingerprint": fingerprint, **options}) as tape:
        generate = tape.stage("rollout", inputs=["prompts"])(lambda prompts: value)
        score = tape.stage("reward")(lambda batch, text: {"score": np.array([0.123456, 1.5, 2.0])})
        for step in range(2):
            with tape.step(step):
                score(generate(list(SECRETS)), SECRETS[0])
                tape.log({"loss": 0.123456 + step, "best": ANSWERS[0], "count": 3})
    return folder


def play(folder, step=0):
    with rolltape.Tape(folder, mode="replay") as tape, tape.step(step):
        return tape.stage("rollout")(lambda: pytest.fail("it ran"))()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_of_what_was_recorded_is_in_any_byte(layout, tmp_path):
    record(tmp_path / "tape", LAYOUTS[layout]())
    with pytest.raises(AssertionError):  # the search finds what there is
        assert_nothing_leaks(tmp_path / "tape")
    done = run("redact", tmp_path / "tape", "--out", tmp_path / "shared")
    assert done.exit_code == 0, done.stderr
    assert_nothing_leaks(tmp_path / "shared")
    assert run("check", tmp_path / "shared").exit_code == 0
    was, now = play(tmp_path / "tape"), play(tmp_path / "shared")
    assert shape(was) == shape(now)
    assert pattern(was) == pattern(now)
    done = run("cut", tmp_path / "tape", "--steps", "1", "--redact", "--out", tmp_path / "small")
    assert done.exit_code == 0, done.stderr
    assert_nothing_leaks(tmp_path / "small")


def shape(value):
    """The types, keys and sizes of a value; texts by whether they are empty."""
    if isinstance(value, dict):
        return [
            (type(value), [key if key in KEYS else "?" for key in value], [shape(v) for v in value.values()])
        ]
    if isinstance(value, (list, tuple)):
        return [type(value), *map(shape, value)]
    if isinstance(value, np.ndarray):
        return [value.dtype, value.shape]
    if isinstance(value, Sample):
        return [Sample, shape(vars(value))]
    return [type(value), len(value) if isinstance(value, (bytes, set)) else 0]


KEYS = {
    "prompt",
    "response",
    "reward",
    "messages",
    "extra",
    "role",
    "content",
    "parts",
    "kept",
    "x",
    "tokens",
    "uid",
}


def pattern(value):
    """Which leaves are equal, as numbers in order of appearance."""
    seen = {}

    def of(node):
        if isinstance(node, dict):
            return [of(child) for child in node.values()]
        if isinstance(node, (list, tuple)):
            return [of(child) for child in node]
        if isinstance(node, np.ndarray) and node.dtype.kind in "iuUS" and node.ndim < 3:
            return [
                of(x if isinstance(x, str) else f"{node.dtype.kind} {x}") for x in node.reshape(-1).tolist()
            ]
        if isinstance(node, np.ndarray):
            return [of(row.tobytes()) for row in node]
        if isinstance(node, Sample):
            return of(vars(node))
        if isinstance(node, set):
            return of(tuple(node))
        return seen.setdefault(node, len(seen))

    return of(value)


def test_padding_masks_and_positions_survive_and_rows_are_still_joined(tmp_path):
    record(tmp_path / "tape", LAYOUTS["dense ids"]())
    run("redact", tmp_path / "tape", "--out", tmp_path / "shared")
    now = play(tmp_path / "shared")
    pad = now["prompts"][0, 0]
    assert (((now["input_ids"] != pad).astype(np.int64)) == now["attention_mask"]).all()
    assert (now["position_ids"] == np.arange(8)).all()
    assert (np.hstack([now["prompts"], now["responses"]]) == now["input_ids"]).all()
    assert now["input_ids"].max() <= TOKENS.max()
    assert (now["advantages"] == np.linspace(0, 1, 12).reshape(3, 4)).all()
    file = next(iter(rolltape.open(tmp_path / "shared").recordings("rollout"))).file
    assert file.stored_columns["input_ids"].layout == "join"


def test_samples_are_who_a_replay_would_say_they_are(tmp_path):
    for name in ("texts", "chats", "dense ids", "ragged ids"):
        record(tmp_path / name, LAYOUTS[name]())
        run("redact", tmp_path / name, "--out", tmp_path / f"{name} shared")
        before, after = (rolltape.open(tmp_path / at).samples(0) for at in (name, f"{name} shared"))
        assert [uid for uid, _ in after.ids] == identify(dismantle(play(tmp_path / f"{name} shared")))[0]
        assert not {uid for uid, _ in before.ids} & {uid for uid, _ in after.ids}
        assert [index for _, index in before.ids] == [index for _, index in after.ids] == [0, 0, 1]


def test_two_redactions_have_nothing_in_common(tmp_path):
    record(tmp_path / "tape", LAYOUTS["texts"]())
    for name in "ab":
        assert run("redact", tmp_path / "tape", "--out", tmp_path / name).exit_code == 0
    a, b = play(tmp_path / "a"), play(tmp_path / "b")
    assert not set(a["prompt"] + a["response"]) & set(b["prompt"] + b["response"])


def test_what_could_confirm_a_guess_is_left_behind(tmp_path):
    record(tmp_path / "tape", LAYOUTS["texts"]())
    old = rolltape.open(tmp_path / "tape")
    hints = {old.manifest.id, old.manifest.digest, "home/alice"}
    for recording in [*old.recordings("rollout"), *old.recordings("reward")]:
        about = recording.about
        hints |= {recording.file.digest, str(about.inputs), *recording.identity()[0]}
        hints |= {one for node in _strings(dict(about.arguments or {})) if len(one := node) > 7}
        hints |= set(_strings(dict(about.random or {})))
    run("redact", tmp_path / "tape", "--out", tmp_path / "shared")
    found = list(all_bytes(tmp_path / "shared"))
    for hint in hints - {"None", ""}:
        if len(hint) > 7:
            assert not any(hint.encode() in data for data in found), hint
    about = next(iter(rolltape.open(tmp_path / "shared").recordings("rollout"))).about
    assert about.random is None
    assert about.arguments is None


def test_names_of_calls_and_keys_that_are_texts_are_replaced(tmp_path):
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        generate = tape.stage("rollout")(lambda text: {"answer": text.upper(), SECRETS[1]: 0.5})
        for text in SECRETS[:2]:
            with tape.step(0, key=text):
                generate(text)
    done = run("redact", tmp_path / "tape", "--out", tmp_path / "shared")
    assert done.exit_code == 0, done.stderr
    assert "Bluebird" not in done.output
    assert_nothing_leaks(tmp_path / "shared")
    assert run("check", tmp_path / "shared").exit_code == 0
    assert len({uid for uid, _ in rolltape.open(tmp_path / "shared").samples(0).ids}) == 2


def test_numbers_are_rounded_when_asked(tmp_path):
    record(
        tmp_path / "tape", {"score": np.array([0.123456, 98765.0, np.nan], np.float32), "uid": list("abc")}
    )
    assert run("redact", tmp_path / "tape", "--round", 2, "--out", tmp_path / "shared").exit_code == 0
    opened = rolltape.open(tmp_path / "shared")
    found = play(tmp_path / "shared")["score"]
    assert found[:2].tolist() == np.array([0.12, 99000], np.float32).tolist()
    assert np.isnan(found[2])
    assert opened.metrics()[1]["loss"] == 1.1
    assert opened.metrics()[1]["count"] == 3


def test_what_stays_is_listed_before_anything_is_written(tmp_path):
    record(tmp_path / "tape", {**LAYOUTS["texts"](), "tokens": TOKENS})
    done = run("redact", tmp_path / "tape", "--dry-run", "--json", "--out", tmp_path / "shared")
    assert done.exit_code == 0
    assert not (tmp_path / "shared").exists()
    listed = json.loads(done.stdout)
    rows = {row["column"]: row for row in listed["columns"] if row["stage"] == "train/rollout"}
    assert rows["reward"] == {
        "stage": "train/rollout",
        "column": "reward",
        "replaced": [],
        "kept": ["numbers"],
    }
    assert rows["tokens"]["replaced"] == ["token ids"]
    assert rows["prompt"]["replaced"] == ["texts"]
    assert listed["metrics"] == ["best", "count", "loss"]
    assert "alice" not in done.stdout
    assert listed["fingerprint"]["seed"] == 7
    assert listed["environment"]["python"]


def test_a_tape_that_is_there_stays(tmp_path):
    record(tmp_path / "tape", LAYOUTS["texts"]())
    record(tmp_path / "other", LAYOUTS["texts"]())
    assert run("redact", tmp_path / "tape", "--out", tmp_path / "other").exit_code == 2
    assert play(tmp_path / "other")["prompt"] == SECRETS


def test_some_samples_are_cut_and_redacted_in_one_go(tmp_path):
    record(tmp_path / "tape", LAYOUTS["texts"]())
    done = run(
        "cut", tmp_path / "tape", "--steps", 1, "--samples", "1-2", "--redact", "--out", tmp_path / "small"
    )
    assert done.exit_code == 0, done.stderr
    assert_nothing_leaks(tmp_path / "small")
    assert "Bluebird" not in done.output
    assert run("check", tmp_path / "small").exit_code == 0
    now = play(tmp_path / "small", step=1)
    assert now["prompt"][0] == now["prompt"][1] != SECRETS[1]
    assert now["reward"] == [1.0, 0.5]
    assert [index for _, index in rolltape.open(tmp_path / "small").samples(1).ids] == [0, 1]
    done = run("cut", tmp_path / "tape", "--steps", 1, "--round", 2, "--out", tmp_path / "other")
    assert done.exit_code == 2


def test_a_single_token_is_replaced_by_its_name_and_rows_of_them_in_fingerprints_too(tmp_path):
    ids = [31007, 20411, 4242]
    value = {
        "responses": TOKENS, "answer_ids": ids, "first_token": np.array(ids), "reward": [0.5, 1.0, 0.0],
        "level": [5, 6, 7], "meta": {"eos_token_id": 31007, "stop_ids": [20411], "max_tokens": 4242},
    }  # fmt: skip
    fingerprint = {"sampling": {"prompt": ids, "stop_token_ids": [9150], "max_tokens": 4242, "seed": 7}}
    record(tmp_path / "t", value, fingerprint=fingerprint)
    assert run("redact", tmp_path / "t", "--out", tmp_path / "r").exit_code == 0
    found = play(tmp_path / "r")
    other = dict(zip(TOKENS.ravel().tolist(), found["responses"].ravel().tolist(), strict=True))
    assert found["answer_ids"] == found["first_token"].tolist() == [other[one] for one in ids] != ids
    assert found["meta"] == {"eos_token_id": other[31007], "stop_ids": [other[20411]], "max_tokens": 4242}
    assert found["level"] == [5, 6, 7]
    sampling = rolltape.open(tmp_path / "r").manifest.fingerprint["sampling"]
    stop = other[9150]
    assert sampling == {
        "prompt": [other[one] for one in ids], "stop_token_ids": [stop], "max_tokens": 4242, "seed": 7,
    }  # fmt: skip
