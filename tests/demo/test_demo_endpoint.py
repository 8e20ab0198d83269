"""Which model the demo asks, by its arguments and the environment."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

DEMO = Path(__file__).resolve().parents[2] / "docs" / "examples" / "approve_charge.py"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("approve_charge", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "approve_charge", module)
    spec.loader.exec_module(module)
    return module


def chosen(demo: ModuleType, *arguments: str) -> tuple[str, str, str, str]:
    with demo.choose_endpoint(demo.parse(list(arguments))) as endpoint:
        return endpoint.base_url, endpoint.style, endpoint.model, endpoint.api_key


def test_without_a_key_the_scripted_model_is_asked(demo: ModuleType) -> None:
    base_url, style, model, _ = chosen(demo)
    assert base_url.startswith("http://127.0.0.1:")
    assert (style, model) == ("openai", "scripted")


@pytest.mark.parametrize(
    ("variable", "style", "base_url"),
    [
        ("OPENAI_API_KEY", "openai", "https://api.openai.com/v1"),
        ("ANTHROPIC_API_KEY", "anthropic", "https://api.anthropic.com"),
    ],
)
def test_a_key_in_the_environment_chooses_its_provider(
    demo: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    style: str,
    base_url: str,
) -> None:
    monkeypatch.setenv(variable, "secret")
    # Another provider's key must not go to this one.
    monkeypatch.setenv("OPENROUTER_API_KEY", "other")
    url, wire, model, key = chosen(demo)
    assert (url, wire, key) == (base_url, style, "secret")
    assert model
    assert chosen(demo, "--model", "mine")[2] == "mine"


def test_style_chooses_between_two_keys(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "one")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "two")
    assert chosen(demo)[3] == "one"
    assert chosen(demo, "--style", "anthropic")[3] == "two"


def test_scripted_is_asked_in_spite_of_a_key(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert chosen(demo, "--scripted")[2] == "scripted"


def test_an_endpoint_of_ones_own_goes_before_every_key(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    given = ("--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    assert chosen(demo, *given) == ("http://127.0.0.1:9/v1", "openai", "m", "secret")
