"""The source tree as syntax trees, read once for all architecture tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_TARGET = re.compile(r"^(mimetic(?:\.\w+)+):\w*$")


@dataclass(frozen=True)
class Import:
    """One imported module.

    Args:
        module: absolute dotted name; for `from a import b` that is `a`.
        names: what is taken from it; empty for `import a`.
        line: line number.
        is_top_level: executed while the file is imported.
        is_typing_only: inside `if TYPE_CHECKING`.
        is_text: a "module:object" text that a catalog loads later.
    """

    module: str
    names: tuple[str, ...]
    line: int
    is_top_level: bool
    is_typing_only: bool = False
    is_text: bool = False


@dataclass(frozen=True)
class SourceFile:
    """One Python file of the package."""

    path: Path
    name: str
    tree: ast.Module = field(repr=False)
    text: str = field(repr=False)

    @property
    def room(self) -> str:
        """First word after `mimetic.`; `__init__` and `__main__` for the package's face."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else "__init__"

    @property
    def is_package(self) -> bool:
        """Whether this is an `__init__.py`."""
        return self.path.name == "__init__.py"

    def imports(self) -> list[Import]:
        """Every import, function-level ones and catalog targets too."""
        return list(_imports(self.tree, self.name if self.is_package else self.name.rpartition(".")[0]))


def _imports(tree: ast.Module, package: str) -> Iterator[Import]:
    def walk(node: ast.AST, top: bool, typing: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, (), node.lineno, top, typing)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                base = package.split(".")[: len(package.split(".")) - node.level + 1]
                module = ".".join([*base, *([module] if module else [])])
            yield Import(module, tuple(alias.name for alias in node.names), node.lineno, top, typing)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = _TARGET.match(node.value)
            if found:
                yield Import(found[1], (), node.lineno, False, typing, is_text=True)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from walk(child, top, True)
            for child in node.orelse:
                yield from walk(child, top, typing)
        else:
            inner = top and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for child in ast.iter_child_nodes(node):
                yield from walk(child, inner, typing)

    yield from walk(tree, True, False)


def read_source(root: Path) -> list[SourceFile]:
    """Parse all files below `root`, which is the folder of the package `mimetic`."""
    files = []
    for path in sorted(root.rglob("*.py")):
        parts = ["mimetic", *path.relative_to(root).with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
        text = path.read_text(encoding="utf-8")
        files.append(SourceFile(path, ".".join(parts), ast.parse(text, str(path)), text))
    return files


@pytest.fixture(scope="session")
def source(repository: Path) -> list[SourceFile]:
    """All files of `src/mimetic`."""
    files = read_source(repository / "src" / "mimetic")
    assert len(files) > 20
    return files


@pytest.fixture
def plant(tmp_path: Path):
    """Write a small package from {relative path: text} and read it back; shows that a rule finds what it forbids."""

    def make(files: dict[str, str]) -> list[SourceFile]:
        for name, text in files.items():
            path = tmp_path / "mimetic" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return read_source(tmp_path / "mimetic")

    return make
