"""The written side of the code: docstrings, sizes, names, and the pages that must exist."""

from __future__ import annotations

import ast
import re

import pytest

LONGEST_FILE = 500
LONGEST_FUNCTION = 120
LONG_FILES: dict[str, str] = {}
"""Longer files that still hold one idea: path below src/mimetic -> the reason."""
JUNK = {"utils", "util", "common", "helpers", "helper", "misc", "tools", "lib", "core", "base_utils", "constants"}
FRAGMENT = re.compile(r"^[a-z0-9_-]+\.(added|changed|fixed|removed|performance|security)\.md$")


def without_docstring(files):
    """Public modules, classes, functions and methods that say nothing about themselves."""
    found = []
    for file in files:
        if not ast.get_docstring(file.tree) and file.text.strip():
            found.append(f"{file.name}: the module")
        found.extend(f"{file.name}:{node.lineno} {name}" for name, node in public(file.tree) if silent(node))
    return found


def public(tree, prefix=""):
    """(dotted name, node) of public classes, functions and methods; nested functions are private."""
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node, f"{prefix}{node.name}.")


def silent(node):
    """Whether a docstring is missing and due; overloads and overrides take theirs from elsewhere."""
    decorators = {ast.unparse(item).split(".")[-1] for item in node.decorator_list}
    return not ast.get_docstring(node) and not decorators & {"overload", "override", "setter"}


def long_functions(files):
    """Functions longer than the limit."""
    return [
        f"{file.name}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for file in files
        for node in ast.walk(file.tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    ]


def prints(files):
    """Calls of `print` and of the root logger outside the one file that may."""
    found = []
    for file in files:
        for node in ast.walk(file.tree):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called == "print" and file.name != "mimetic.cli.output":
                found.append(f"{file.name}:{node.lineno} prints")
            if re.fullmatch(r"logging\.(debug|info|warning|error|critical|exception|log|basicConfig)", called):
                found.append(f"{file.name}:{node.lineno} uses the root logger")
            if called == "input":
                found.append(f"{file.name}:{node.lineno} waits for the keyboard")
    return found


def test_every_public_object_says_what_it_is(source):
    assert without_docstring(source) == []


def test_no_file_is_too_long_without_a_reason(source, repository):
    root = repository / "src" / "mimetic"
    long = {str(f.path.relative_to(root)): n for f in source if (n := f.text.count("\n")) > LONGEST_FILE}
    assert {name: lines for name, lines in long.items() if name not in LONG_FILES} == {}
    assert set(LONG_FILES) <= set(long), "an exception that is no longer needed"


def test_no_function_is_too_long(source):
    assert long_functions(source) == []


def test_nothing_prints_but_the_output_module(source):
    assert prints(source) == []


def test_package_files_are_empty(source):
    full = [f.name for f in source if f.is_package and f.name != "mimetic" and f.text.strip()]
    assert full == []


def test_every_folder_of_modules_is_a_package(repository):
    root = repository / "src" / "mimetic"
    folders = {path.parent for path in root.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_no_module_is_a_junk_drawer_or_hides_a_standard_one(source):
    import sys

    names = [(f.name, part) for f in source for part in f.name.split(".")[1:]]
    assert [name for name, part in names if part in JUNK] == []
    # `config.parse` may be called as it likes; a name of the standard library may not (LeRobot had to rename one)
    assert [f.name for f in source if f.name.count(".") == 1 and f.name.split(".")[1] in sys.stdlib_module_names] == []


def test_todo_notes_name_an_issue(source):
    found = [
        f"{f.name}:{number}"
        for f in source
        for number, line in enumerate(f.text.splitlines(), 1)
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))", line)
    ]
    assert found == []


def test_no_file_carries_a_licence_banner(source):
    assert [f.name for f in source if re.search(r"copyright|licensed under", f.text[:400], re.IGNORECASE)] == []


def test_change_fragments_have_a_known_kind_and_one_short_text(repository):
    for path in (repository / "changes").iterdir():
        if path.name == "README.md":
            continue
        assert FRAGMENT.match(path.name), f"{path.name}: TOPIC.(added|changed|fixed|removed|performance|security).md"
        assert 0 < len(path.read_text(encoding="utf-8").split()) < 80, f"{path.name}: one or two sentences"


def test_the_readme_stays_short_and_every_page_can_be_reached(repository):
    readme = (repository / "README.md").read_text(encoding="utf-8")
    assert readme.count("\n") <= 150
    reachable, todo = set(), [repository / "README.md", repository / "CONTRIBUTING.md"]
    while todo:
        page = todo.pop()
        if page in reachable:
            continue
        reachable.add(page)
        for link in re.findall(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                target = (page.parent / link).resolve()
                assert target.exists(), f"{page.relative_to(repository)} links to {link}, which is not there"
                todo.append(target)
    lost = [str(p.relative_to(repository)) for p in (repository / "docs").rglob("*.md") if p.resolve() not in reachable]
    assert lost == [], "no page links to these"


def test_links_to_files_of_the_repository_are_right(repository):
    pages = [repository / "README.md", repository / "CONTRIBUTING.md", *(repository / "docs").rglob("*.md")]
    broken = [
        f"{page.relative_to(repository)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert broken == []


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (without_docstring, '"""Doc."""\ndef f(): ...'),
        (without_docstring, '"""Doc."""\nclass A:\n    """Doc."""\n    def f(self): ...'),
        (without_docstring, "x = 1"),
        (long_functions, "def f():\n" + "    x = 1\n" * 121),
        (prints, "print(1)"),
        (prints, "import logging\nlogging.info('x')"),
        (prints, "input()"),
    ],
)
def test_each_rule_finds_what_it_forbids(plant, rule, text):
    assert len(rule(plant({"data/a.py": text}))) == 1


def test_private_and_overloaded_functions_need_no_docstring(plant):
    text = '"""Doc."""\ndef _f(): ...\n@overload\ndef g(): ...\nclass _A:\n    def f(self): ...'
    assert without_docstring(plant({"data/a.py": text})) == []
