"""Nothing from a file or socket is unpickled, and no text becomes code (docs/architecture.md, "Safety")."""

from __future__ import annotations

import ast

import pytest

PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
CODE = {"eval", "exec", "compile", "__import__"}
UNSAFE_YAML = {"load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all"}


def dangers(files):
    """One sentence for each construct that can run code from data."""
    found = []
    for file in files:
        for one in file.imports():
            if one.module.split(".")[0] in PICKLES and one.names != (
                "UnpicklingError",
            ):  # what torch.load refuses with
                found.append(f"{file.name}:{one.line} imports {one.module}")
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Call):
                found.extend(f"{file.name}:{node.lineno} {what}" for what in dangers_of_call(node))
    return found


def dangers_of_call(node):
    """What is wrong with one call."""
    called = ast.unparse(node.func)
    keywords = {word.arg: ast.unparse(word.value) for word in node.keywords if word.arg}
    if called in CODE:
        yield f"calls {called}"
    if called == "torch.load" and keywords.get("weights_only") != "True":
        yield "calls torch.load without weights_only=True"
    if keywords.get("trust_remote_code") == "True":
        yield "passes trust_remote_code=True"
    if keywords.get("allow_pickle") == "True":
        yield "passes allow_pickle=True"
    if called.split(".")[0] == "yaml" and called.split(".")[-1] in UNSAFE_YAML and "Loader" not in keywords:
        yield f"calls {called} without a safe loader"
    if called == "os.system" or (called.startswith("subprocess.") and keywords.get("shell") == "True"):
        yield "runs a shell"


def test_no_data_becomes_code(source):
    assert dangers(source) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "def f():\n    from dill import loads",
        "import torch\ntorch.load('x')",
        "import torch\ntorch.load('x', weights_only=False)",
        "eval('1')",
        "exec('1')",
        "__import__('os')",
        "f(trust_remote_code=True)",
        "np.load('x', allow_pickle=True)",
        "yaml.load(text)",
        "subprocess.run('ls', shell=True)",
    ],
)
def test_the_rule_finds_what_it_forbids(plant, text):
    assert len(dangers(plant({"data/a.py": text}))) == 1


def test_the_rule_lets_pass_what_is_safe(plant):
    text = "from pickle import UnpicklingError\ntorch.load('x', weights_only=True)\nyaml.safe_load(text)\nmodel.eval()\nre.compile('x')\ntorch.compile(m)"
    assert dangers(plant({"data/a.py": text})) == []
