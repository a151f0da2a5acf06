#!/usr/bin/env python3
"""Pin the torch of this environment, so that no later install replaces it by a build for other hardware.

Whatever makes pip or uv choose torch anew takes it from the default index, whose Linux build is for CUDA, and puts it
in the place of a ROCm, XPU or CPU build. With what this writes as overrides (uv) or constraints (pip), torch and what
belongs to it stay as they are:

    python scripts/freeze_torch.py --output=overrides.txt
    uv pip install --override overrides.txt -e .
    PIP_CONSTRAINT=$PWD/overrides.txt pip install -e .

Needs nothing but Python, and does not import torch: it runs before mimetic is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "torch",
    "torchvision",
    "torchaudio",
    "triton",
    "triton-rocm",
    "triton-xpu",
    "pytorch-triton",
    "pytorch-triton-rocm",
    "pytorch-triton-xpu",
    "numpy",
)
"""What is built together with torch, under all the names that it has had; numpy because compiled parts depend on it."""

TAGGED = ("torchvision", "torchaudio")
"""Their versions say what they were built for, such as 0.24.0+rocm7.0."""


class Problem(Exception):
    """What is wrong, and what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def installed() -> dict[str, str]:
    """Exact versions of those of `PACKAGES` that are installed, with the part behind the plus sign."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def target() -> str:
    """What the installed torch was built for: "cuda", "rocm", "xpu" or "cpu"; "" when that cannot be read."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return ""
    try:
        text = (Path(spec.submodule_search_locations[0]) / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for name, kind in (("hip", "rocm"), ("cuda", "cuda"), ("xpu", "xpu")):
        if re.search(rf"^{name}(?:\s*:[^=\n]+)?\s*=\s*['\"][^'\"]+['\"]", text, re.MULTILINE):
            return kind
    return "cpu"


def require(build: str, versions: dict[str, str]) -> None:
    """Make sure that torch is there, and for the wanted hardware.

    Args:
        build: "cuda", "rocm", "xpu", "cpu", or "any".
        versions: what is installed.

    Raises:
        Problem: torch is missing, or it or a package with a tag was built for something else.
    """
    if "torch" not in versions:
        raise Problem("torch is not installed here", f"run this with the Python that has it; this is {sys.executable}")
    if build == "any":
        return
    if target() != build:
        raise Problem(
            f"torch {versions['torch']} is built for {target() or 'something unknown'}, not for {build}",
            "install the right build first; pytorch.org shows the command",
        )
    for name in TAGGED:
        if build == "rocm" and name in versions and "rocm" not in versions[name].partition("+")[2]:
            raise Problem(
                f"{name} {versions[name]} is not a ROCm build, and torch is one",
                f"install the {name} that belongs to torch {versions['torch']}, or `pip uninstall {name}`",
            )


def text_of(versions: dict[str, str]) -> str:
    """The file: one exact version a line."""
    head = "# Written by scripts/freeze_torch.py: the torch of this environment and what belongs to it.\n"
    return head + "".join(f"{name}=={version}\n" for name, version in versions.items())


def changed(text: str, versions: dict[str, str]) -> list[str]:
    """What differs between a written file and what is installed now, one sentence each."""
    found = []
    for line in text.splitlines():
        name, equals, version = line.partition("==")
        if equals and not line.startswith("#") and versions.get(name) != version:
            found.append(f"{name} was {version} and is {versions.get(name, 'missing')}")
    return found


def write(path: Path, text: str) -> None:
    """Write a file in one go: nobody ever sees half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise Problem(f"cannot write {path}: {error.strerror}", "name another file with `--output`") from error


def run(arguments: list[str]) -> None:
    """Do what the flags say.

    Raises:
        Problem: see `require`; or the check found a difference; or a file cannot be read or written.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, help="file to write; without it the lines go to stdout")
    parser.add_argument(
        "--build", choices=("any", "cuda", "rocm", "xpu", "cpu"), default="any", help="fail if torch is not this"
    )
    parser.add_argument("--check", type=Path, help="fail if what is installed differs from this file")
    flags = parser.parse_args(arguments)

    versions = installed()
    require(flags.build, versions)
    if flags.check:
        try:
            differences = changed(flags.check.read_text(encoding="utf-8"), versions)
        except OSError as error:
            raise Problem(f"cannot read {flags.check}: {error.strerror}", "write it first, with `--output`") from error
        if differences:
            raise Problem("; ".join(differences), f"`pip install -r {flags.check}` from where the first torch came")
    elif flags.output:
        write(flags.output, text_of(versions))
        sys.stderr.write(
            f"{flags.output}: torch {versions['torch']} ({target() or 'unknown build'}) and {len(versions) - 1} more\n"
        )
    else:
        sys.stdout.write(text_of(versions))


def main() -> int:
    """Run, with problems as two lines and exit code 1."""
    try:
        run(sys.argv[1:])
    except Problem as problem:
        sys.stderr.write(f"error: {problem}\nhint: {problem.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
