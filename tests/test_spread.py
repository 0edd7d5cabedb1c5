"""Work in pieces, each as bytes to a process that shares nothing, comes out as if it was done in one go."""

from __future__ import annotations

import pickle
import shutil
import sys
from contextlib import nullcontext

import pyarrow as pa
import pytest

import rolltape
from rolltape.cli.spreading import with_addresses
from rolltape.index.index_rows import SCHEMA
from rolltape.index.sample_index import SampleIndex
from tests.cli_tapes import run
from tests.spread_tapes import CANDIDATES, MINE, RERUNS, make_tapes


class Pieces:
    """A spread that hands over pieces of so many items as bytes, the last one first, each of them twice."""

    def __init__(self, size):
        self.size, self.tapes = size, set()

    def over(self, work, items, tapes):
        self.tapes |= {*tapes}
        sent = pickle.dumps(work)
        cut = [pickle.dumps(items[at : at + self.size]) for at in range(0, len(items), self.size)]
        done = {}
        for at in [*reversed(range(len(cut))), *range(len(cut))]:
            try:
                done[at] = pickle.dumps(list(pickle.loads(sent)(pickle.loads(cut[at]))))
            except rolltape.RolltapeError as error:
                done[at] = pickle.dumps(error)
        for at in range(len(cut)):
            found = pickle.loads(done[at])
            if isinstance(found, Exception):
                raise found
            yield from found


@pytest.fixture(scope="module")
def tapes(tmp_path_factory):
    return make_tapes(tmp_path_factory.mktemp("tapes"))


def both_ways(monkeypatch, size, *args):
    here = run(*args)
    spread = Pieces(size)
    with monkeypatch.context() as patch:
        patch.setattr("rolltape.ray.cluster", lambda address: nullcontext(spread))
        there = run(*args, "--ray")
    return [(done.stdout, done.stderr, done.exit_code) for done in (here, there)], spread


@pytest.mark.parametrize(("candidate", "code"), CANDIDATES)
@pytest.mark.parametrize(("size", "form"), [(1, ["--per-step"]), (4, ["--json"])])
def test_a_comparison(monkeypatch, tapes, candidate, code, size, form):
    (here, there), spread = both_ways(monkeypatch, size, "diff", tapes / "base", tapes / candidate, *form)
    assert here == there
    assert here[2] == code
    if candidate != "broken":  # of which already the names cannot be put in order
        assert spread.tapes == {str(tapes / "base"), str(tapes / candidate)}


@pytest.mark.parametrize(("tape", "code"), [("base", 0), ("broken", 1)])
@pytest.mark.parametrize(("size", "form"), [(1, []), (5, ["--json"])])
def test_a_check(monkeypatch, tapes, tape, code, size, form):
    (here, there), spread = both_ways(monkeypatch, size, "check", tapes / tape, *form)
    assert here == there
    assert here[2] == code
    assert spread.tapes == {str(tapes / tape)}


@pytest.mark.parametrize(("tape", "code"), [("base", 0), ("broken", 1)])
@pytest.mark.parametrize(("size", "form"), [(1, []), (5, ["--json"])])
def test_an_index(monkeypatch, tapes, tmp_path, tape, code, size, form):
    """Built twice of the same recordings, here and in pieces, it is the same one; so is what a check says."""
    found = []
    for place in ("here", "there"):
        shutil.copytree(tapes / tape, tmp_path / place / "tape")
        monkeypatch.chdir(tmp_path / place)
        spread = Pieces(size)
        monkeypatch.setattr("rolltape.ray.cluster", lambda address, spread=spread: nullcontext(spread))
        words = ["--ray"] if place == "there" else []
        built, checked = (run("index", one, "tape", *form, *words) for one in ("build", "check"))
        found.append([(done.stdout, done.stderr, done.exit_code) for done in (built, checked)])
        index = SampleIndex(rolltape.open("tape"), read=False)
        rows = pa.concat_tables(index.tables([*SCHEMA.names[:6], *SCHEMA.names[7:], "path"]))
        found[-1].append(rows.sort_by([("path", "ascending"), ("row", "ascending")]).to_pylist())
        assert spread.tapes == ({str(tmp_path / place / "tape")} if words else set())
    assert found[0] == found[1]
    assert found[0][0][2] == code
    assert len(found[0][2]) > 6


@pytest.mark.parametrize(("args", "code"), RERUNS)
def test_a_rerun(monkeypatch, tapes, tmp_path, args, code):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    (here, there), _ = both_ways(monkeypatch, 1, "rerun", tapes / "wrong", *args)
    assert here == there
    assert code is None or here[2] == code


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["a", "b", "--ray"], ["a", "b", "--ray="]),
        (["--ray", "a", "b"], ["--ray=", "a", "b"]),
        (["--ray", "auto", "a"], ["--ray=auto", "a"]),
        (["a", "--ray", "ray://head:10001", "b"], ["a", "--ray=ray://head:10001", "b"]),
        (["a", "--ray", "[::1]:6379"], ["a", "--ray=[::1]:6379"]),
        (["--ray=10.0.0.1:1", "a"], ["--ray=10.0.0.1:1", "a"]),
        (["--ray", "./runs:1", "a"], ["--ray=", "./runs:1", "a"]),
        (["--ray", "--json", "a"], ["--ray=", "--json", "a"]),
        (["a", "--", "--ray", "b"], ["a", "--", "--ray", "b"]),
    ],
)
def test_an_address_may_be_left_out(given, wanted):
    assert with_addresses(given) == wanted


@pytest.mark.parametrize("args", [["diff", "base", "same"], ["check", "base"], ["rerun", "base", "3"]])
def test_without_ray_the_error_says_what_to_install(monkeypatch, tapes, args):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tapes)
    done = run(*args, "--ray")
    assert done.exit_code == 2
    assert 'pip install "rolltape[ray-data]"' in done.stderr


def test_reading_and_writing_say_what_to_install(monkeypatch, tapes):
    import rolltape.ray

    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(rolltape.MissingDependencyError, match="ray"):
        rolltape.ray.read(tapes / "base")
    with pytest.raises(rolltape.MissingDependencyError, match=r"rolltape\[ray-data\]"):
        rolltape.ray.write(None, tapes / "new")
