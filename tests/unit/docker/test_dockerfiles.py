"""The Dockerfiles keep our rules: pinned bases, no root, nothing left behind, and only files that exist."""

from __future__ import annotations

import fnmatch
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
FOLDER = REPOSITORY / "docker"
FILES = sorted(path.name for path in FOLDER.glob("Dockerfile*"))
OURS = {"Dockerfile", "Dockerfile.cuda", "Dockerfile.rocm"}


@dataclass(frozen=True)
class Step:
    """One instruction with its continuation lines joined."""

    line: int
    name: str
    text: str


def parse(text: str) -> list[Step]:
    """Instructions of a Dockerfile in order, without comments.

    Raises:
        ValueError: a line is no instruction.
    """
    steps, start, joined = [], 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not joined):
            continue
        start = start or number
        joined += line.strip().removesuffix("\\").rstrip() + " "
        if line.rstrip().endswith("\\"):
            continue
        name, _, rest = joined.strip().partition(" ")
        if not re.fullmatch(r"[A-Z]+", name):
            raise ValueError(f"line {start}: `{name}` is no instruction")
        steps.append(Step(start, name, rest.strip()))
        start, joined = 0, ""
    if joined:
        raise ValueError(f"line {start}: the file ends within an instruction")
    return steps


def arguments(steps: list[Step]) -> dict[str, str]:
    """Build arguments with their defaults; an argument without one is an empty text."""
    found = {}
    for step in steps:
        if step.name == "ARG":
            name, _, value = step.text.partition("=")
            found[name] = shlex.split(value)[0] if value else ""
    return found


def expand(text: str, values: dict[str, str]) -> str:
    """Put build arguments in the place of their names."""
    return re.sub(r"\$\{(\w+)\}", lambda match: values.get(match[1], match[0]), text)


def ignored(name: str, rules: list[str]) -> bool:
    """Whether a path is left out of the build context; the last rule that fits decides."""
    out = False
    for rule in rules:
        pattern = rule.removeprefix("!").removeprefix("**/")
        parts = name.split("/")
        fits = any(fnmatch.fnmatch("/".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))
        fits = fits or (rule.startswith("**/") and any(fnmatch.fnmatch(part, pattern) for part in parts))
        if fits:
            out = not rule.startswith("!")
    return out


def problems(text: str, root: Path = REPOSITORY) -> list[str]:
    """What breaks our rules, one sentence each."""
    steps = parse(text)
    values = arguments(steps)
    found = []
    for step in steps:
        where = f"line {step.line}"
        if step.name == "FROM":
            if not re.search(r"\$\{\w+\}", step.text):
                found.append(f"{where}: the base is no build argument")
            base = expand(step.text, values)
            if ":" not in base or base.endswith((":", ":latest")) or "${" in base:
                found.append(f"{where}: the base `{base}` has no fixed tag")
            if "." in base.split("/")[0] and "/" in base:
                found.append(f"{where}: the base `{base}` names a registry")
        if step.name == "ADD":
            found.append(f"{where}: ADD fetches and unpacks; COPY does what it says")
        if step.name == "COPY":
            if "--from" in step.text:
                found.append(f"{where}: copies from another image, which nothing pins")
            for source in step.text.split()[:-1]:
                if not (root / source).exists():
                    found.append(f"{where}: `{source}` does not exist")
        if step.name == "RUN":
            if "apt-get install" in step.text and (
                "--no-install-recommends" not in step.text or "rm -rf /var/lib/apt/lists/*" not in step.text
            ):
                found.append(f"{where}: apt-get leaves its lists or recommended packages behind")
            if re.search(r"https?://", step.text):
                found.append(f"{where}: names an address")
            if re.search(r"\b(curl|wget|sudo)\b", step.text):
                found.append(f"{where}: downloads or runs as somebody else")
    users = [step for step in steps if step.name == "USER"]
    if not users or users[-1].text in ("root", "0"):
        found.append("the last user is root")
    if any(values.get(name, "x") == "latest" for name in values):
        found.append("a build argument says `latest`")
    runs = [step for step in steps if step.name == "RUN"]
    if (
        not runs
        or not re.search(r"&& mimetic info$", runs[-1].text)
        or runs[-1].line < (users[-1].line if users else 0)
    ):
        found.append("the last step does not run `mimetic info` as the last user")
    if sum(step.name == "HEALTHCHECK" for step in steps) != 1:
        found.append("nothing is said about a health check")
    return found


def test_the_three_files_are_there() -> None:
    assert set(FILES) == OURS


@pytest.mark.parametrize("name", FILES)
def test_our_rules_are_kept(name: str) -> None:
    assert problems((FOLDER / name).read_text()) == []


@pytest.mark.parametrize("name", FILES)
def test_what_is_copied_is_in_the_build_context(name: str) -> None:
    rules = [
        line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")
    ]
    for step in parse((FOLDER / name).read_text()):
        if step.name == "COPY":
            assert [source for source in step.text.split()[:-1] if ignored(source, rules)] == []


def test_the_build_context_holds_nothing_else() -> None:
    rules = [
        line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")
    ]
    for name in (
        ".git/config",
        "tests/conftest.py",
        "outputs/run",
        ".venv/bin/python",
        ".env",
        "src/mimetic/__pycache__/a.pyc",
        "scripts/setup.sh",
    ):
        assert ignored(name, rules), name
    assert not ignored("src/mimetic/cli/app.py", rules)


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_torch_is_a_version_that_is_tested(name: str) -> None:
    tested = {
        "Dockerfile": re.search(r"^torch==(\S+)", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE),
        "Dockerfile.cuda": re.search(r"^TORCH_CUDA=(\S+)", (REPOSITORY / "scripts/setup.sh").read_text(), re.MULTILINE),
    }[name]
    assert tested
    assert arguments(parse((FOLDER / name).read_text()))["TORCH"] == tested[1]


@pytest.mark.parametrize("name", FILES)
def test_the_extras_exist(name: str) -> None:
    import tomllib

    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(arguments(parse((FOLDER / name).read_text()))["EXTRAS"].split(",")) <= set(extras)


def test_the_rocm_torch_is_pinned_before_anything_is_installed_and_checked_at_the_end() -> None:
    steps = parse((FOLDER / "Dockerfile.rocm").read_text())
    texts = [f"{step.name} {step.text}" for step in steps]
    frozen = next(n for n, text in enumerate(texts) if "freeze_torch.py --build=rocm --output=overrides.txt" in text)
    exported = next(n for n, text in enumerate(texts) if "UV_OVERRIDE=/opt/mimetic/overrides.txt" in text)
    installed = next(n for n, text in enumerate(texts) if "uv pip install" in text)
    checked = next(n for n, text in enumerate(texts) if "--check=/opt/mimetic/overrides.txt" in text)
    assert frozen < exported < installed < checked
    assert "PIP_CONSTRAINT=/opt/mimetic/overrides.txt" in texts[exported]
    assert any("ROCPROFILER_LOG_LEVEL=fatal" in text for text in texts)
    assert "assert torch.version.hip" in texts[checked]
    assert "constraints.txt" not in " ".join(texts), "its torch would contradict the one of the base"


def test_the_readme_has_the_flags_that_each_image_needs() -> None:
    page = (FOLDER / "README.md").read_text()
    for name in FILES:
        assert f"docker build -f docker/{name} " in page
    for flag in (
        "--gpus all",
        "--shm-size 16gb",
        "--device=/dev/kfd",
        "--device=/dev/dri",
        "--group-add video",
        "--group-add render",
        "--ipc=host",
        "--security-opt seccomp=unconfined",
        "getent group render",
    ):
        assert flag in page, flag


# --- the rules find what they forbid ---

GOOD = """\
ARG TAG=3.11.14-slim
FROM python:${TAG}
# a comment
RUN apt-get update \\
    && apt-get install -y --no-install-recommends g++ \\
    && rm -rf /var/lib/apt/lists/*
COPY README.md ./
USER 1000
RUN true && mimetic info
HEALTHCHECK NONE
"""


def test_a_good_file_has_no_problems() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("python:${TAG}", "python:3.11", "line 2: the base is no build argument"),
        ("TAG=3.11.14-slim", "TAG=latest", "line 2: the base `python:latest` has no fixed tag"),
        ("TAG=3.11.14-slim", "TAG", "line 2: the base `python:` has no fixed tag"),
        (
            "FROM python",
            "FROM registry.example.org/python",
            "line 2: the base `registry.example.org/python:3.11.14-slim` names a registry",
        ),
        ("COPY README.md", "COPY nowhere.txt", "line 7: `nowhere.txt` does not exist"),
        ("COPY README.md", "ADD README.md", "line 7: ADD fetches and unpacks; COPY does what it says"),
        ("COPY README.md", "COPY --from=other README.md", "line 7: copies from another image, which nothing pins"),
        ("--no-install-recommends ", "", "line 4: apt-get leaves its lists or recommended packages behind"),
        (
            " \\\n    && rm -rf /var/lib/apt/lists/*",
            "",
            "line 4: apt-get leaves its lists or recommended packages behind",
        ),
        ("RUN true", "RUN curl -L x", "line 9: downloads or runs as somebody else"),
        ("RUN true", "RUN pip install -i https://x y", "line 9: names an address"),
        ("USER 1000", "USER root", "the last user is root"),
        ("USER 1000\n", "", "the last user is root"),
        (" && mimetic info", "", "the last step does not run `mimetic info` as the last user"),
        ("HEALTHCHECK NONE\n", "", "nothing is said about a health check"),
    ],
)
def test_each_rule_finds_what_it_forbids(old: str, new: str, problem: str) -> None:
    assert old in GOOD
    assert problem in problems(GOOD.replace(old, new))


@pytest.mark.parametrize("text", ["RUN a \\\n", "run a", "PIP=1"])
def test_what_is_no_dockerfile_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        parse(text)
