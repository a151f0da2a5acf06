"""The generated reference pages are current, and the generator says what the declarations say."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from mimetic.fields import setting

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "reference.py"


@pytest.fixture(scope="module")
def reference():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("mimetic_reference_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("name", ["cli.md", "config.md", "errors.md"])
def test_the_page_is_current(reference, name):
    text = reference.GENERATED + reference.PAGES[name]()
    assert (reference.FOLDER / name).read_text(encoding="utf-8") == text, "`make docs` writes it again"


def test_check_names_the_pages_that_differ_and_writes_nothing(reference, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    assert reference.main(["--check"]) == 1
    assert list(tmp_path.iterdir()) == []
    assert "cli.md, config.md, errors.md" in capsys.readouterr().err
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    (tmp_path / "errors.md").write_text("old", encoding="utf-8")
    assert reference.main(["--check"]) == 1


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A group."""

    lr: float = setting(1e-3, "Rate", unit="1/step", layer="next")


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Settings with one of each kind."""

    name: str = setting(help="Name of it")
    sizes: list[int] | None = setting(None, "Sizes")
    kind: str = setting("a", "Kind", choices=("a", "b"))
    inner: Inner = setting(factory=Inner, help="Inner group")
    hidden: int = setting(1, "Not a flag", flag=False)
    later: bool = setting(False, "Something", not_yet="it is not there yet")
    policy: object | None = setting(None, "The policy", catalog="mimetic.policies.catalog:POLICIES")


def test_flags_are_what_the_dataclass_declares(reference):
    rows = {flag.name: (flag.type, flag.default, flag.help, flag.known_by) for flag in reference.flags(Outer)}
    assert rows == {
        "name": ("text", "", "Name of it", ""),
        "sizes": ("list of integer or null", "null", "Sizes", ""),
        "kind": ("`a`, `b`", "a", "Kind", ""),
        "inner.lr": ("number", "0.001", "Rate [1/step]", "newer LeRobot"),
        "later": ("true, false", "false", "Something (not yet: it is not there yet)", ""),
        "policy.type": ("`act`, `keypoint`, `smolvla`", "null", "The policy", ""),
    }
