"""The public Python names are those that docs/reference/python.md lists, and each of them loads."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import mimetic


def documented(page):
    """Names of the table rows "| `name` | ...", in order."""
    return re.findall(r"^\| `(\w+)`", page, re.MULTILINE)


def test_exported_names_are_the_documented_ones(repository):
    page = (repository / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    names = documented(page)
    assert len(names) == len(set(names))
    assert sorted(names) == sorted(mimetic.__all__)


@pytest.mark.parametrize("name", mimetic.__all__)
def test_every_exported_name_loads_and_says_what_it_is(name):
    value = getattr(mimetic, name)
    if name != "__version__":
        assert inspect.getdoc(value)
    assert name in dir(mimetic)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        mimetic.no_such_name  # noqa: B018


def test_importing_the_package_imports_nothing_else():
    code = "import sys; before = set(sys.modules); import mimetic; print(sorted(set(sys.modules) - before))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = {name for name in re.findall(r"'([\w.]+)'", out) if name.split(".")[0] not in sys.stdlib_module_names}
    assert {name for name in loaded if not name.startswith("__editable__")} == {"mimetic"}


def test_the_documented_list_is_read_from_the_table():
    assert documented("| name | what |\n|---|---|\n| `train` | x |\ntext `no`\n| `open_dataset` | y |") == [
        "train",
        "open_dataset",
    ]
