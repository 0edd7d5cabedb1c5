"""`pip install rolltape` alone stays as light as it was: stores and Ray are extras, loaded where used."""

import subprocess
import sys
from importlib.metadata import requires

LOCAL = """
import sys
import rolltape
from click.testing import CliRunner
from rolltape.cli import main

for mode in ("record", "replay"):
    with rolltape.Tape(sys.argv[1], mode=mode) as tape:
        stage = tape.stage("rollout")(lambda step: {"x": [step]})
        with tape.step(0):
            stage(0)
rolltape.open(sys.argv[1]).steps("rollout")
for words in (["check", sys.argv[1]], ["push", sys.argv[1], sys.argv[1] + "-copy"]):
    assert CliRunner().invoke(main, words).exit_code == 0
print(sorted({"obstore", "ray", "aiohttp", "requests", "fsspec"} & set(sys.modules)))
"""


def test_a_tape_on_a_disk_loads_nothing_of_stores(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LOCAL, str(tmp_path / "t")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n", done.stderr


def test_only_four_packages_are_needed():
    needed = [line.split(">")[0].split("=")[0] for line in requires("rolltape") if "extra ==" not in line]
    assert sorted(needed) == ["click", "numpy", "pyarrow", "rich"]
