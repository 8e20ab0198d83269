"""toolnexus.testing as a package: its names, and the pytest plugin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import toolnexus.testing


def test_every_public_name_loads() -> None:
    for name in toolnexus.testing.__all__:
        assert getattr(toolnexus.testing, name) is not None
        assert name in dir(toolnexus.testing)
    with pytest.raises(AttributeError, match="nonsense"):
        toolnexus.testing.nonsense  # noqa: B018


def test_the_plugin_imports_next_to_nothing() -> None:
    code = (
        "import sys, toolnexus.testing.plugin as p\n"
        "loaded = {m for m in sys.modules if m.startswith('toolnexus.testing.')}\n"
        "assert loaded == {p.__name__}, loaded\n"
        "assert 'requests' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_fixtures_check_the_script_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(toolnexus.testing.__file__).parents[2]))
    test = tmp_path / "test_it.py"
    test.write_text(
        "from toolnexus.testing import text\n"
        "def test_left_over(scripted_llm, virtual_clock):\n"
        "    scripted_llm.say('m', text('unused'))\n"
        "    virtual_clock.advance(1)\n"
        "def test_on_purpose(scripted_llm):\n"
        "    scripted_llm.say('m', text('unused'))\n"
        "    scripted_llm.check_done = False\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "toolnexus.testing.plugin"]
    run = subprocess.run(
        [*command, "--rootdir", tmp_path, "-c", "/dev/null", test],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "2 passed, 1 error" in run.stdout
    assert "unused replies" in run.stdout
