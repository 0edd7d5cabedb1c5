"""Where the demo cannot run, it says what is missing. What it shows is tested in tests/trl/test_demo.py."""

import sys

import pytest

from tests.cli_tapes import run


def test_without_its_libraries_it_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for name in [name for name in sys.modules if name.startswith(("rolltape.demo", "rolltape.examples"))]:
        monkeypatch.delitem(sys.modules, name)
    for missing in ("torch", "tokenizers", "transformers"):
        monkeypatch.setitem(sys.modules, missing, None)
    done = run("demo", "--dir", tmp_path / "demo")
    assert done.exit_code == 2
    assert 'pip install "rolltape[transformers]"' in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "demo").exists()
