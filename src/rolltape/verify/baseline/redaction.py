"""What of a tape is replaced by stand-ins when it is shared, and what stays.

Replaced are texts, token ids, bytes and pictures, wherever they stand: in columns, inside plain values, in
uids, names of calls, fingerprints and metrics. Other numbers stay, or are rounded. What could confirm a guess
is left behind: digests of arguments and inputs, random states, what a replay was given, paths, ids of tapes.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rolltape.batch.arrays import Bits
from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.batch.dtypes import storage_dtype
from rolltape.batch.json_values import from_json, to_json
from rolltape.batch.roles import has_role
from rolltape.batch.scalars import Json, text_node
from rolltape.batch.tree import Dismantled
from rolltape.codec.cells import tagged_cells
from rolltape.codec.file import RecordingFile, encode
from rolltape.codec.identity import identify
from rolltape.codec.pack import pack, place_cells
from rolltape.errors import RolltapeError
from rolltape.key import Key
from rolltape.tape.manifest import Manifest, digest_of
from rolltape.verify.baseline.replacements import VOCABULARY, StandIns, Survey, rounded

TEXTS, TOKENS, DATA, NUMBERS = "texts", "token ids", "bytes and pictures", "numbers"
REPLACED = (TEXTS, TOKENS, DATA)
BESIDE = "(beside the samples)"

_ABOUT = (
    "split stage step rank world_size position order recorded live_seconds blocked_seconds replay returned "
    "inside max_keep previous holds"
).split()
_ROLES = ("prompt_ids", "response_ids", "token_ids")
_COUNTS = re.compile(r"position|len|index|grid|offset|count|^num_|^n_|step|size|shape|segment|seed|version")
_IDS = re.compile(r"(^|_)(ids|token|token_ids?)$")
"""How names end that are given to a single token too: ``eos_token_id``, ``answer_ids``."""
_PICTURES = re.compile(r"pixel|image|video|audio|frame|embed|hidden|feature")
_WORDS = frozenset(
    "system user assistant tool developer function text image image_url video audio input_text output_text "
    "tool_call tool_calls stop length abort aborted error eos max_tokens end_turn RGB RGBA L".split()
)
_WORD_KEYS = frozenset("role type finish_reason finish_reasons stop_reason palette".split())
"""Under these names the words above are the same in everybody's data, and programs ask for them."""
_PARTS = {"pil.image": {"mode", "size", "format"}}
_TENSORDICT = {"names", "name", "device", "batch_size", "dim"}
"""What adapters need to put their values together, and is nobody's text."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./@:+-]{0,63}|[0-9]{1,6}")
_HASH = re.compile(r"[0-9a-fA-F]{16}|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}")
_HASHES_FROM = 2**48
"""Whole numbers from here on may be hashes."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one column, or what lies beside the columns, holds."""

    stage: str
    column: str
    holds: tuple[str, ...]

    @property
    def kept(self) -> bool:
        """Whether it is written as it is, but for rounding."""
        return not any(kind in REPLACED for kind in self.holds)


@dataclass(frozen=True, slots=True)
class Tagged:
    """Plain values as JSON with tags, and the arrays that they refer to."""

    texts: list[bytes | None]
    files: list[list[bytes]]


@dataclass(slots=True)
class Walker:
    """Goes through JSON as tapes have it, and replaces what is to be replaced."""

    standins: StandIns
    digits: int | None = None
    found: set[str] = field(default_factory=set)
    ids: bool = True
    """Whether rows of whole numbers may be tokens."""

    def name(self, name: str) -> str:
        """A key, or the name of a column: as it is, unless it is rather a text."""
        return "/".join(map(self._part, name.split("/")))

    def _part(self, part: str) -> str:
        return part if not part or (_NAME.fullmatch(part) and not _HASH.search(part)) else self.text(part)

    def text(self, text: str, key: str = "") -> str:
        """A text, unless it is a word that programs ask for."""
        if key in _WORD_KEYS and text in _WORDS:
            return text
        self.found.add(TEXTS)
        return self.standins.text(text)

    def data(self, text: str) -> str:
        """Bytes in base64."""
        self.found.add(DATA)
        return base64.b64encode(self.standins.data(base64.b64decode(text))).decode()

    def number(self, number: float, key: str = "") -> int | float:
        """A number; one that is a token or may be a hash is replaced."""
        if isinstance(number, bool):
            return number
        if isinstance(number, int):
            if abs(number) >= _HASHES_FROM:
                self.found.add(TOKENS)
                return self.standins.number(number)
            if self.ids and _is_of_ids(key):
                return self._tokens([number])[0]
            self.found.add(NUMBERS)
            return number
        self.found.add(NUMBERS)
        return number if self.digits is None else float(rounded(np.array(number), "float64", self.digits))

    def _tokens(self, numbers: list[int]) -> list[int]:
        self.found.add(TOKENS)
        found: list[int] = self.standins.tokens(np.array(numbers, np.int64)).tolist()
        return found

    def node(self, node: Json, key: str = "", files: list[bytes] | None = None) -> Json:
        """The same structure with other content; ``files`` are the arrays that a plain value refers to."""
        if isinstance(node, str):
            return self.text(node, key)
        if isinstance(node, (int, float)):
            return self.number(node, key)
        if isinstance(node, list):
            if self._are_tokens(node, key):
                return self._tokens(node)
            return [self.node(child, key, files) for child in node]
        if not isinstance(node, dict):
            return node
        tag = next(iter(node), "")
        if tag.startswith("$"):
            return self._tagged(tag, node, key, files)
        return {self.name(name): self.node(child, name, files) for name, child in node.items()}

    def _are_tokens(self, node: list[Json], key: str) -> bool:
        if not self.ids or not node or not all(type(item) is int for item in node):
            return False
        if max(map(abs, node)) >= _HASHES_FROM:
            return False
        return _is_of_ids(key) or not (len(node) < 2 or _COUNTS.search(key) or {-1, 0, 1}.issuperset(node))

    def _tagged(self, tag: str, node: dict[str, Json], key: str, files: list[bytes] | None) -> Json:
        inside = node[tag]
        if tag in ("$column", "$whole"):
            return node | {tag: self.name(inside)}
        if tag == "$array":
            return self._array(node, key, files or [])
        if tag in ("$nested", "$list", "$row", "$point"):
            return {tag: self.node(inside, key, files)}
        if tag == "$objects":
            return node | {"items": self.node(node["items"], key, files)}
        if tag in ("$records", "$dataclass", "$namedtuple"):
            held = {name: self.node(child, name, files) for name, child in node["fields"].items()}
            return node | {
                "fields": held if inside is not None else {self.name(n): c for n, c in held.items()}
            }
        if tag == "$adapted":
            return node | {"parts": self._adapted(str(inside), node["parts"], key, files)}
        if tag == "$enum":
            return node
        if tag in ("$dict", "$ordereddict"):
            pairs = [[self._key(k), self.node(v, k if isinstance(k, str) else key, files)] for k, v in inside]
            more = {n: self.node(v, n, files) for n, v in node.items() if n != tag}
            return {tag: pairs, **more}
        if tag == "$tuple":
            return {tag: self.node(inside, key, files)}
        if tag in ("$set", "$frozenset"):
            return {tag: sorted((self.node(child, key, files) for child in inside), key=json.dumps)}
        return self._scalar(tag, inside)

    def _adapted(self, adapter: str, parts: Json, key: str, files: list[bytes] | None) -> Json:
        kept = _kept_parts(adapter)
        if not isinstance(parts, dict) or next(iter(parts), "").startswith("$"):
            return self.node(parts, key, files)
        return {n: part if n in kept else self.node(part, n, files) for n, part in parts.items()}

    def _key(self, node: Json) -> Json:
        """A key of a dict whose keys are not all texts; whole numbers may be tokens."""
        if type(node) is int and 0 <= node < VOCABULARY and self.ids:
            return self._tokens([node])[0]
        return self.name(node) if isinstance(node, str) else self.node(node)

    def _scalar(self, tag: str, inside: Json) -> Json:
        if tag == "$str":
            return text_node(self.text(base64.b64decode(inside).decode("utf-8", "surrogatepass")))
        if tag in ("$bytes", "$bytearray"):
            return {tag: self.data(inside)}
        if tag == "$uuid":
            self.found.add(TEXTS)
            text = inside if isinstance(inside, str) else inside[0]
            other = self.standins.uuid(text)
            return {tag: other if isinstance(inside, str) else [other, inside[1]]}
        if tag == "$int":
            self.found.add(TOKENS)
            return {tag: hex(self.standins.number(int(inside, 16)))}
        if tag == "$numpy" and inside[0] == "str":
            return {tag: ["str", self.node(inside[1])]}
        if tag == "$numpy" and (inside[0] == "bytes" or np.dtype(inside[0]).kind in "USV"):
            return {tag: [inside[0], self.data(inside[1])]}
        self.found.add(NUMBERS)
        return {tag: inside}

    def _array(self, node: dict[str, Json], key: str, files: list[bytes]) -> Json:
        data = np.frombuffer(bytearray(files[node["$array"]]), storage_dtype(node["dtype"]))
        data = data.reshape(node["shape"])
        is_bytes = node["wrap"].get("lib") == "bytes"
        kind = DATA if is_bytes else kind_of(key, node["dtype"], data, data.ndim)
        files[node["$array"]] = self.array(data, node["dtype"], kind, rows=False).tobytes()
        return node

    def array(self, data: np.ndarray, dtype: str, kind: str, *, rows: bool) -> np.ndarray:
        """An array of this kind; with ``rows`` the first axis is the samples."""
        self.found.add(kind)
        if kind == TOKENS:
            return self.standins.tokens(data)
        if kind == TEXTS:
            return self._texts(data)
        if kind == DATA:
            if not rows:
                return self.standins.picture(data, dtype)
            found: np.ndarray = data.copy()
            for at, row in enumerate(data):
                found[at] = self.standins.picture(row, dtype)
            return found
        return data if self.digits is None else rounded(data, dtype, self.digits)

    def _texts(self, data: np.ndarray) -> np.ndarray:
        width = data.dtype.itemsize // (4 if data.dtype.kind == "U" else 1)
        found: np.ndarray = data.copy()
        for at in np.ndindex(data.shape):
            text = data[at] if data.dtype.kind == "U" else bytes(data[at]).decode("latin-1")
            found[at] = self.standins.text_within(str(text), width)
        return found


def _is_of_ids(name: str) -> bool:
    """Whether a name says that each number under it is a token."""
    last = name.rsplit("/", 1)[-1].lower()
    return has_role(name, *_ROLES) or (_IDS.search(last) is not None and not _COUNTS.search(last))


def kind_of(name: str, dtype: str, data: np.ndarray, axes: int) -> str:
    """What an array holds; ``axes`` are those of one sample."""
    parts = [part for part in name.split("/") if not part.isdecimal()]
    last = parts[-1].lower() if parts else ""
    kind = data.dtype.kind
    if kind in "USV":
        return DATA if kind == "V" else TEXTS
    if kind == "f" or not dtype.removeprefix("numpy:").lstrip("<>=|").startswith(("int", "uint", "i", "u")):
        pictures = kind not in "bcmM" and axes and (_PICTURES.search(last) or axes > 2)
        return DATA if pictures and not _COUNTS.search(last) else NUMBERS
    if kind not in "iu":
        return NUMBERS
    if _is_of_ids("/".join(parts)):
        return TOKENS
    low, high = (int(data.min()), int(data.max())) if data.size else (0, 0)
    if max(-low, high) >= _HASHES_FROM:
        return TOKENS
    if not axes or (low >= -1 and high <= 1) or _COUNTS.search(last):
        return NUMBERS
    return DATA if data.dtype.itemsize == 1 or (axes > 1 and _PICTURES.search(last)) else TOKENS


class Redaction:
    """The stand-ins of one tape, once it has been looked through."""

    def __init__(self, files: Iterable[tuple[Key, RecordingFile]], digits: int | None = None) -> None:
        survey = Survey()
        walker = Walker(survey, digits)
        self._kinds: dict[tuple[str, str, str], str] = {}
        self._holds: dict[tuple[str, str], set[str]] = {}
        for key, file in files:
            self._look(key, file, walker)
        self._walker = Walker(StandIns(survey.largest), digits)

    @property
    def found(self) -> list[Found]:
        """What every column of the tape holds, by the names that the new tape has."""
        return [
            Found(stage, self._walker.name(column), tuple(sorted(kinds)))
            for (stage, column), kinds in self._holds.items()
        ]

    def _look(self, key: Key, file: RecordingFile, walker: Walker) -> None:
        stage, needed = _stage(key), _needed(_tree(file))
        for name, dtype, data, axes in _arrays(file):
            is_bytes = name in file.stored_wholes and file.stored_wholes[name].wrap.get("lib") == "bytes"
            kind = DATA if is_bytes else NUMBERS if name in needed else kind_of(name, dtype, data, axes)
            self._note(stage, name, dtype, kind)
            if kind == TOKENS:
                walker.standins.tokens(data)
        for name in _objects(file):
            walker.found = self._holds.setdefault((stage, name), set())
            if name not in needed:
                self._replaced(name, file, walker)
        walker.found = set()
        walker.node(_tree(file))
        if walker.found:
            self._holds.setdefault((stage, BESIDE), set()).update(walker.found)

    def _note(self, stage: str, name: str, dtype: str, kind: str) -> None:
        """What a column is at one step it is at all: the most delicate counts."""
        order = ("", NUMBERS, TOKENS, DATA, TEXTS)
        at = stage, name, dtype
        self._kinds[at] = max(self._kinds.get(at, ""), kind, key=order.index)
        self._holds.setdefault((stage, name), set()).add(kind)

    def call(self, key: Key) -> Key:
        """The same place on the new tape; a call that has a name gets another."""
        if not isinstance(key.call, str):
            return key
        return replace(key, call=self._walker.standins.text(key.call)[:128])

    def metrics(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        """What was logged, without its texts."""
        node = to_json(dict(logged), _no_leaf)
        found: dict[str, Any] = from_json(replace(self._walker, ids=False).node(node), _no_leaf)
        return found

    def manifest(self, manifest: Manifest, fresh: Manifest) -> Manifest:
        """What the new tape says about itself."""
        walker = replace(self._walker, digits=None)
        environment = {
            name: walker.text(text) if re.search(r"[/\\]", str(text)) else text
            for name, text in manifest.environment.items()
        }
        earlier = {digest_of(parts): parts for parts in map(walker.node, manifest.earlier.values())}
        return replace(
            fresh,
            fingerprint=walker.node(dict(manifest.fingerprint)),
            environment=environment,
            earlier=earlier,
            program={},
        )

    def pieces(self, key: Key, file: RecordingFile, manifest: Manifest, tape: Manifest) -> list[Any]:
        """The file of one recording, redacted, of a tape with this ``manifest``, for the new one ``tape``."""
        stage, new, needed = _stage(key), self.call(key), _needed(_tree(file))
        before: dict[str, Column] = {}
        columns: dict[str, Column] = {}
        tagged: dict[str, Tagged] = {}
        for name, column in file.columns([n for n in file.stored_columns if n not in _objects(file)]).items():
            before[name] = column
            columns[self._walker.name(name)] = self._array(stage, name, column)
        for name in _objects(file):
            if name in needed:
                columns[self._walker.name(name)] = file.columns([name])[name]
                continue
            was, now = self._replaced(name, file, self._walker)
            if isinstance(now, Tagged):
                tagged[self._walker.name(name)] = now
            else:
                columns[self._walker.name(name)] = now
            before |= {name: was} if was is not None else {}
        wholes = {}
        for name in file.stored_wholes:
            bits = file.whole(name)
            data = self._walker.array(bits.data, bits.dtype, self._kinds[stage, name, bits.dtype], rows=False)
            wholes[self._walker.name(name)] = Bits(data, bits.dtype, bits.wrap)
        node = self._walker.node(_tree(file))
        parts = Dismantled(file.samples, node, columns, wholes)
        packed = pack(parts, self._identity(file, before, parts, key, new) if file.samples else None)
        entries = packed.header["columns"]
        for name, cells in tagged.items():
            entries[name] = place_cells(name, tagged_cells(cells.texts, cells.files), packed)
        order = map(self._walker.name, file.stored_columns)
        packed.header["columns"] = {name: entries[name] for name in order}
        return encode(packed, **self._about(file, new, manifest, tape))

    def _array(self, stage: str, name: str, column: Column) -> Column:
        if isinstance(column, ObjectColumn):
            return column
        kind = self._kinds[stage, name, column.dtype]
        if isinstance(column, ArrayColumn):
            return replace(column, data=self._walker.array(column.data, column.dtype, kind, rows=True))
        if kind != DATA:
            return replace(column, values=self._walker.array(column.values, column.dtype, kind, rows=False))
        rows = [self._walker.array(row, column.dtype, kind, rows=False) for row in column.rows()]
        return replace(column, values=np.concatenate([column.values[:0], *rows]))

    @staticmethod
    def _replaced(
        name: str, file: RecordingFile, walker: Walker
    ) -> tuple[Column | None, ObjectColumn | Tagged]:
        """A column of plain values before and after; of one with tags, which may need classes, only after."""
        key = name.rsplit("/", 1)[-1]
        if file.stored_columns[name].cells != "tagged":
            was = file.columns([name])[name]
            return was, ObjectColumn([_plain(value, key, walker) for value in was.rows()], (name,))
        attached = f"_attached/{name}"
        stored = file.stored([name] + [attached] * (attached in file.stored_bytes()), 0, file.samples)
        cells = stored[name].to_pylist()
        files = stored[attached].to_pylist() if attached in stored else [[] for _ in cells]
        nodes = (walker.node(json.loads(cell), key, row) for cell, row in zip(cells, files, strict=True))
        texts = [json.dumps(node, ensure_ascii=False, separators=(",", ":")).encode() for node in nodes]
        return None, Tagged([*texts], files)

    def _identity(
        self, file: RecordingFile, before: dict[str, Column], parts: Dismantled, key: Key, new: Key
    ) -> tuple[list[str], np.ndarray]:
        """Who the samples are: what their new content says where the old one said it, else stand-ins."""
        uids, index = file.identity()
        name, other = (key.call, new.call) if isinstance(key.call, str) else ("", "")
        try:
            same = identify(replace(parts, columns=before), str(name))[0] == uids
        except RolltapeError:
            same = False
        found = identify(parts, str(other))[0] if same else [self._walker.standins.text(uid) for uid in uids]
        return found, np.array(index, np.int32)

    def _about(self, file: RecordingFile, key: Key, manifest: Manifest, tape: Manifest) -> dict[str, Json]:
        about = {name: file.about[name] for name in _ABOUT if name in file.about}
        about |= {"call": key.call, "tape": tape.id, "run": tape.id}
        if file.about.fingerprint == manifest.digest:
            about["fingerprint"] = tape.digest
        elif file.about.fingerprint in manifest.earlier:
            walker = replace(self._walker, digits=None)
            about["fingerprint"] = digest_of(walker.node(manifest.earlier[str(file.about.fingerprint)]))
        if file.about.inputs is not None:  # says that result and inputs belong together, and nothing of them
            about["inputs"] = self._walker.standins.uuid(file.about.inputs)
        return about


def _stage(key: Key) -> str:
    return f"{key.split}/{key.stage}{' (inputs)' if key.inputs else ''}"


def _tree(file: RecordingFile) -> Json:
    return file.tree.taken_apart(file.samples, {}, {}).tree


def _objects(file: RecordingFile) -> list[str]:
    return [name for name, column in file.stored_columns.items() if column.kind == "objects"]


def _arrays(file: RecordingFile) -> Iterator[tuple[str, str, np.ndarray, int]]:
    """Every array with its name, dtype and the axes that a sample has."""
    for name, column in file.columns([n for n in file.stored_columns if n not in _objects(file)]).items():
        if isinstance(column, ArrayColumn):
            yield name, column.dtype, column.data, column.data.ndim - 1
        elif isinstance(column, RaggedColumn):
            yield name, column.dtype, column.values, column.values.ndim
    for name in file.stored_wholes:
        bits = file.whole(name)
        yield name, bits.dtype, bits.data, bits.data.ndim


def _plain(value: Any, key: str, walker: Walker) -> Any:
    if isinstance(value, bytes):
        walker.found.add(DATA)
        return walker.standins.data(value)
    if isinstance(value, np.generic):
        return type(value)(walker.number(value.item(), key))
    return walker.node(value, key)


def _needed(node: Json, inside: bool = False) -> set[str]:
    """The columns and arrays without which an adapter cannot put its value together."""
    if isinstance(node, list):
        return {name for child in node for name in _needed(child, inside)}
    if not isinstance(node, dict):
        return set()
    found = {str(node[tag]) for tag in ("$column", "$whole") if tag in node and inside}
    for name, child in node.items():
        found |= _needed(child, inside)
        if name == "parts" and "$adapted" in node and isinstance(child, dict):
            kept = _kept_parts(str(node["$adapted"]))
            found |= {one for part, inner in child.items() if part in kept for one in _needed(inner, True)}
    return found


def _kept_parts(adapter: str) -> set[str]:
    return _TENSORDICT if adapter.startswith("tensordict") else _PARTS.get(adapter, set())


def _no_leaf(*_: Any) -> Any:
    raise TypeError("metrics have no arrays")
