"""What is imported at all, and when: declared packages only, nothing heavy on the way to a help text."""

from __future__ import annotations

import re
import sys
import tomllib

import pytest

DISTRIBUTION = {
    "PIL": "pillow",
    "yaml": "pyyaml",
    "mcap_ros2": "mcap-ros2-support",
    "rerun": "rerun-sdk",
    "gym_pusht": "gym-pusht",
    "gym_aloha": "gym-aloha",
    "dm_control": "dm-control",
    "libero": "hf-libero",
}  # where the import name differs
HEAVY = {
    "torch", "numpy", "pyarrow", "av", "PIL", "safetensors", "huggingface_hub", "matplotlib",
    "torchvision", "torchcodec", "transformers", "cv2",
}  # fmt: skip
GROUND = ("errors", "names", "features", "fields", "catalog", "log", "clock")
ALLOWED_WHERE_FOUND = {"simplejpeg"}  # used when it happens to be there, never required


def third_party(one):
    """Import name of the package outside mimetic and the standard library; None for those."""
    top = one.module.split(".")[0]
    return None if top in sys.stdlib_module_names or top in ("mimetic", "") else top


def is_cold(file):
    """Whether the file lies on the way to a help text."""
    return file.room in (*GROUND, "config", "cli", "__init__", "__main__") or file.path.name in (
        "config.py",
        "catalog.py",
    )


def heavy_on_the_cold_path(files):
    """Sentences about heavy imports that run while a help text is made."""
    return [
        f"{file.name}:{one.line} imports {one.module} while it loads"
        for file in files
        if is_cold(file)
        for one in file.imports()
        if one.is_top_level and not one.is_typing_only and third_party(one) in HEAVY
    ]


def undeclared(files, core, extras):
    """Sentences about packages that pyproject.toml does not ask for, or only as an extra."""
    found = []
    for file in files:
        for one in file.imports():
            package = third_party(one)
            if package is None or package in ALLOWED_WHERE_FOUND:
                continue
            name = DISTRIBUTION.get(package, package).lower()
            if name in core:
                continue
            if name not in extras:
                found.append(f"{file.name}:{one.line} imports {package}, which pyproject.toml does not name")
            elif one.is_top_level and not one.is_typing_only:
                found.append(f"{file.name}:{one.line} needs the extra {package} just to be imported")
    return found


@pytest.fixture(scope="session")
def declared(repository):
    """(core, extras): lower-case distribution names of pyproject.toml."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def names(requirements):
        return {re.match(r"[\w.-]+", text)[0].lower() for text in requirements}

    extras = project["optional-dependencies"]
    return names(project["dependencies"]), set().union(*(names(items) for items in extras.values()))


def test_nothing_heavy_is_imported_on_the_way_to_a_help_text(source):
    assert heavy_on_the_cold_path(source) == []


def test_every_imported_package_is_declared(source, declared):
    assert undeclared(source, *declared) == []


def test_every_core_dependency_is_imported_or_explained(source, declared, repository):
    used = {DISTRIBUTION.get(p, p).lower() for f in source for one in f.imports() if (p := third_party(one))}
    page = (repository / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name in declared[0]:
        assert name in used, f"{name} is a core dependency that nothing imports"
        assert f"`{name}`" in page, f"docs/architecture.md does not say why {name} is there"


@pytest.mark.parametrize(
    ("path", "text", "cold"),
    [
        ("train/config.py", "import numpy as np", True),
        ("cli/app.py", "from torch import nn", True),
        ("cli/app.py", "def main():\n    import torch", False),
        ("policies/config.py", "if TYPE_CHECKING:\n    import torch", False),
        ("train/loop.py", "import torch", False),
    ],
)
def test_the_cold_rule_finds_what_it_forbids(plant, path, text, cold):
    assert bool(heavy_on_the_cold_path(plant({path: text}))) == cold


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("import pandas", "does not name"),
        ("import matplotlib.pyplot as plt", "just to be imported"),
        ("def f():\n    import matplotlib", ""),
        ("import torch\nimport json\nfrom PIL import Image", ""),
    ],
)
def test_the_declaration_rule_finds_what_it_forbids(plant, text, word):
    found = undeclared(plant({"data/a.py": text}), {"torch", "pillow"}, {"matplotlib"})
    assert (word in found[0]) if word else found == []
