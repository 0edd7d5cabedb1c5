"""The wheel holds what a user needs and nothing else, and importing it costs no framework."""

import configparser
import email
import json
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from rolltape._version import __version__
from tests.stacks import optional

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {
    "accelerate", "click", "duckdb", "jax", "numpy", "omegaconf", "pandas", "PIL", "polars", "pyarrow", "ray",
    "rich", "sglang", "tensordict", "tensorflow", "torch", "transformers", "trl", "verl", "vllm", "yaml",
}  # fmt: skip
"""Imported by the module that needs each, never by `import rolltape`."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, so that no `build/` is left in the clone."""
    optional("setuptools")
    work = tmp_path_factory.mktemp("wheel")
    clone = work / "clone"
    skip = shutil.ignore_patterns("*.egg-info", "__pycache__")
    for folder in ("src", "tests", "tools", "requirements"):
        shutil.copytree(ROOT / folder, clone / folder, ignore=skip)
    for file in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, clone)
    pip_wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    built = subprocess.run([*pip_wheel, "--wheel-dir", work, clone], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = work.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_is_typed_and_holds_every_module(wheel):
    source = ROOT / "src"
    modules = {path.relative_to(source).as_posix() for path in source.glob("rolltape/**/*.py")}
    assert modules | {"rolltape/py.typed"} <= set(wheel.namelist())


def test_wheel_holds_the_package_and_nothing_else(wheel):
    top_level = {name.split("/")[0] for name in wheel.namelist()}
    assert top_level == {"rolltape", "hydra_plugins", f"rolltape-{__version__}.dist-info"}
    assert [name for name in wheel.namelist() if name.startswith("hydra_plugins/")] == [
        "hydra_plugins/rolltape_verl.py"
    ]


def test_wheel_installs_the_rolltape_command(wheel):
    entry_points = configparser.ConfigParser()
    entry_points.read_string(dist_info(wheel, "entry_points.txt"))
    assert entry_points["console_scripts"]["rolltape"] == "rolltape.cli:main"


def test_wheel_carries_version_license_and_readme(wheel):
    meta = email.message_from_string(dist_info(wheel, "METADATA"))
    assert meta["Version"] == __version__
    assert meta["License-Expression"] == "Apache-2.0"
    assert meta["Requires-Python"] == ">=3.10"
    assert meta.get_payload().strip() == (ROOT / "README.md").read_text().strip()
    assert dist_info(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text()


def test_wheel_requires_only_the_light_core(wheel):
    meta = email.message_from_string(dist_info(wheel, "METADATA"))
    required = {line for line in meta.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert required == {"numpy>=1.24", "pyarrow>=17", "click>=8.1", "rich>=13"}
    readme = (ROOT / "README.md").read_text()
    names = {line.partition(">")[0] for line in required}
    said = re.search(r"The library needs (.*?); everything else is an extra", readme)
    assert said is not None
    assert {word for word in re.findall(r"\w+", said[1]) if word in names} == names


def test_running_code_and_its_metadata_agree_on_the_version():
    assert metadata.version("rolltape") == __version__


def test_import_is_light():
    code = "import json, sys, rolltape; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert loaded & HEAVY == set()


@pytest.mark.parametrize(
    "code",
    [
        "import rolltape.engines as e; [getattr(e, name) for name in e.__all__]",
        "from rolltape.integrations import trl, roll, slime, loggers, miles, ray_env",
    ],
    ids=["engines", "integrations"],
)
def test_a_program_that_only_replays_can_name_everything(code):
    """Scripts import engines and integrations at their top, also where their libraries are missing."""
    heavy = sorted(HEAVY - {"numpy", "pyarrow"})
    block = f"import sys; sys.modules.update(dict.fromkeys({heavy}))"
    done = subprocess.run([sys.executable, "-c", f"{block}; {code}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def dist_info(wheel: zipfile.ZipFile, name: str) -> str:
    return wheel.read(f"rolltape-{__version__}.dist-info/{name}").decode()
