"""A room imports only from floors below it, and some neighbours never (docs/architecture.md)."""

from __future__ import annotations

import pytest

FLOORS = {
    1: ("errors", "names", "features", "fields", "catalog", "log", "clock"),
    2: ("config", "hub", "accelerators", "optim", "motors", "cameras"),
    3: ("data", "processing", "envs", "robots", "teleop", "distributed"),
    4: ("policies",),
    5: ("train", "inference"),
    6: ("plan", "report", "evaluate", "serve", "control", "testing"),
    7: ("demo",),
    8: ("cli",),
    9: ("__init__", "__main__"),
}
FLOOR = {room: floor for floor, rooms in FLOORS.items() for room in rooms}

NEEDS_TORCH = ("accelerators", "optim", "data", "processing", "envs", "distributed", "policies", "train", "inference")
NEVER = {
    "policies": ("data", "train", "envs", "robots"),
    "data": ("policies", "processing"),
    "train": ("envs", "evaluate", "robots"),
    "robots": NEEDS_TORCH,
    "teleop": NEEDS_TORCH,
    "motors": NEEDS_TORCH,
    "cameras": NEEDS_TORCH,
    "serve": ("data", "train", "robots"),
    "inference": ("data", "train", "robots"),
}
SETTINGS = {("mimetic.train.config", "mimetic.envs.catalog")}
"""Settings may name the catalog of a choice in a room that their own room never imports: the parser reads it."""


def room_of(module):
    """Room of a dotted name of the package; None for other packages and for the bare package."""
    parts = module.split(".")
    return parts[1] if parts[0] == "mimetic" and len(parts) > 1 else None


def violations(files):
    """One sentence for each import that the floors forbid."""
    found = []
    modules = {file.name for file in files}
    for file in files:
        if file.room not in FLOOR:
            found.append(f"{file.name}: the room `{file.room}` stands on no floor")
            continue
        for one in file.imports():
            targets = [one.module]
            if one.module == "mimetic":
                targets = [f"mimetic.{name}" for name in one.names if f"mimetic.{name}" in modules]
                if set(one.names) - {"__version__"} and not targets:
                    found.append(f"{file.name}:{one.line} takes {one.names} from the public face")
            for target in targets:
                found.extend(judge(file, one.line, target))
    return found


def judge(file, line, target):
    """Sentences about one imported module."""
    if target.split(".")[0] in ("tests", "conftest"):
        return [f"{file.name}:{line} imports {target}: production code never imports tests"]
    room = room_of(target)
    if room is None or room == file.room or file.room in FLOORS[9]:
        return []
    if room not in FLOOR:
        return [f"{file.name}:{line} imports {target}, whose room stands on no floor"]
    if (file.name, target) in SETTINGS:
        return []
    if room in NEVER.get(file.room, ()):
        return [f"{file.name}:{line} imports {target}: `{file.room}` never imports `{room}`"]
    own, other = FLOOR[file.room], FLOOR[room]
    if other >= own and not own == other == 1:
        return [f"{file.name}:{line} imports {target}: floor {own} (`{file.room}`) from floor {other} (`{room}`)"]
    return []


def cycles(files):
    """Groups of modules that import each other, function-level imports counted, types only left out."""
    modules = {file.name for file in files}
    edges = {file.name: set() for file in files}
    for file in files:
        for one in file.imports():
            if one.is_typing_only or one.is_text:
                continue
            targets = [one.module, *(f"{one.module}.{name}" for name in one.names)]
            edges[file.name] |= {target for target in targets if target in modules and target != file.name}
    edges["mimetic"] = set()  # the face loads by name on first use
    return [group for group in components(edges) if len(group) > 1]


def components(edges):
    """Strongly connected components (Tarjan), as sorted lists."""
    index, low, stack, groups = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
            groups.append(sorted(group))

    for node in edges:
        if node not in index:
            visit(node)
    return groups


def test_every_import_goes_down(source):
    assert violations(source) == []


def test_no_modules_import_each_other_in_a_circle(source):
    assert cycles(source) == []


@pytest.mark.parametrize(
    ("path", "text", "word"),
    [
        ("policies/a.py", "from mimetic.data.reader import open_dataset", "never"),
        ("policies/a.py", "def f():\n    import mimetic.train.run", "never"),
        ("data/a.py", "from mimetic import policies", "never"),
        ("train/a.py", "T = 'mimetic.evaluate.open_loop:evaluate'", "never"),
        ("config/a.py", "import mimetic.hub.api", "floor 2"),
        ("errors.py", "import mimetic.config.codec", "floor 1"),
        ("data/a.py", "from ..cli import app", "floor 3"),
        ("evaluate/a.py", "from mimetic.report import render", "floor 6"),
        ("demo/a.py", "from mimetic.cli import app", "floor 7"),
        ("optim/a.py", "if TYPE_CHECKING:\n    from mimetic.train.config import TrainConfig", "floor 2"),
        ("cli/a.py", "from tests.fakes import robot", "never imports tests"),
        ("helpers/a.py", "", "no floor"),
        ("train/a.py", "from mimetic import open_dataset", "public face"),
    ],
)
def test_the_rule_finds_what_it_forbids(plant, path, text, word):
    files = plant({path: text, "policies/__init__.py": "", "cli/app.py": ""})
    found = violations(files)
    assert len(found) == 1, found
    assert word in found[0]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("train/a.py", "from mimetic.policies.config import PolicyConfig\nfrom mimetic import __version__"),
        ("errors.py", "from mimetic.names import ACTION"),
        ("evaluate/config.py", "from mimetic.train.config import EnvEvalConfig"),
        ("data/a.py", "import torch\nfrom .table import read"),
    ],
)
def test_the_rule_lets_pass_what_is_right(plant, path, text):
    assert violations(plant({path: text})) == []


def test_a_circle_through_a_function_is_found(plant):
    files = plant({"data/a.py": "from mimetic.data import b", "data/b.py": "def f():\n    import mimetic.data.a"})
    assert cycles(files) == [["mimetic.data.a", "mimetic.data.b"]]
