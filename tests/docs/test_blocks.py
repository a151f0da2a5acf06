"""Every code block of the documentation runs, or carries a written reason why not.

What happens to a fenced block says its language and the comment above it:

- `sh`, `python`: run, in the order of the page, in a folder of the page's own where `tests/` is the repository's.
- `<!-- not run: REASON -->`: not run.
- `<!-- exits N -->` above an `sh` block: run, and must end with that exit code.
- `<!-- output -->`: each line must appear, in this order, in what the last block printed; `...` stands for anything.
- `<!-- file: NAME -->`: written to that file for the blocks that follow.

A block of another language without a comment is an error.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for path in (REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").rglob("*.md"))
)
FENCE = re.compile(r"^ *(```+)(.*)$")
COMMENT = re.compile(r"^<!-- *(not run|exits|output|file)(?:: *| *)(.*?) *-->$")
TIMEOUT_S = 240


@dataclass(frozen=True)
class Block:
    """One fenced block: where it starts, its language, the comment above it, its text."""

    line: int
    language: str
    mark: str
    value: str
    text: str

    @property
    def problem(self) -> str:
        """Why a reader could not know whether this block is right; empty when all is well."""
        if self.mark == "not run":
            return "" if len(self.value.split()) >= 2 else "says `not run` without a reason"
        if self.mark in ("output", "file"):
            return ""
        if self.language in ("sh", "python"):
            return ""
        return f"is neither run nor marked (language `{self.language}`)"


def blocks(page: str) -> Iterator[Block]:
    """All fenced blocks of a page's text.

    Raises:
        ValueError: a fence is never closed.
    """
    lines = page.splitlines()
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if not opening:
            number += 1
            continue
        above = next((line for line in reversed(lines[:number]) if line.strip()), "")
        comment = COMMENT.match(above.strip())
        start = number
        number += 1
        while number < len(lines) and lines[number].strip() != opening[1]:
            number += 1
        if number == len(lines):
            raise ValueError(f"the fence in line {start + 1} is never closed")
        indent = len(lines[start]) - len(lines[start].lstrip())
        yield Block(
            line=start + 1,
            language=opening[2].strip(),
            mark=comment[1] if comment else "",
            value=comment[2] if comment else "",
            text="\n".join(line[indent:] for line in lines[start + 1 : number]) + "\n",
        )
        number += 1


def missing_lines(expected: str, printed: str) -> list[str]:
    """Lines of `expected` that do not appear in `printed` in this order; `...` stands for anything."""
    rest = printed.splitlines()
    for line in expected.splitlines():
        if line.strip() in ("", "..."):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in line.strip().split("...")))
        for position, candidate in enumerate(rest):
            if pattern.fullmatch(candidate.strip()):
                rest = rest[position + 1 :]
                break
        else:
            return [line]
    return []


def run(block: Block, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell or Python block in `folder` with this environment's commands first on the path."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTEST_CURRENT_TEST", None)
    command = ["sh", "-eu", "-c", block.text] if block.language == "sh" else [sys.executable, "-c", block.text]
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": TIMEOUT_S}
    return subprocess.run(command, cwd=folder, env=environment, check=False, **options)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_says_why_not(page):
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    assert [f"{page}:{block.line} {block.problem}" for block in blocks(text) if block.problem] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_the_page_work(page, tmp_path):
    (tmp_path / "tests").symlink_to(REPOSITORY / "tests")
    printed = ""
    for block in blocks((REPOSITORY / page).read_text(encoding="utf-8")):
        where = f"{page}:{block.line}"
        if block.mark == "file":
            (tmp_path / block.value).write_text(block.text, encoding="utf-8")
        elif block.mark == "output":
            assert missing_lines(block.text, printed) == [], f"{where}: not in what was printed:\n{printed}"
        elif block.mark != "not run":
            done = run(block, tmp_path)
            printed = done.stdout + done.stderr
            expected = int(block.value) if block.mark == "exits" else 0
            assert done.returncode == expected, f"{where} exited {done.returncode}, not {expected}:\n{printed[-4000:]}"


@pytest.mark.parametrize(
    ("page", "problems"),
    [
        ("```sh\ntrue\n```", 0),
        ("```text\nx\n```", 1),
        ("```\nx\n```", 1),
        ("<!-- not run: needs a GPU -->\n```sh\nx\n```", 0),
        ("<!-- not run: -->\n```sh\nx\n```", 1),
        ("<!-- not run: because -->\n```text\nx\n```", 1),
        ("<!-- not run: shows a file -->\n\n```text\nx\n```", 0),
        ("<!-- not run: needs a GPU -->\nwords between\n```text\nx\n```", 1),
        ("<!-- output -->\n```text\nx\n```", 0),
        ("<!-- file: a.json -->\n```json\n{}\n```", 0),
    ],
)
def test_the_rule_finds_unmarked_blocks(page, problems):
    assert sum(bool(block.problem) for block in blocks(page)) == problems


def test_an_open_fence_is_an_error():
    with pytest.raises(ValueError, match="line 2"):
        list(blocks("x\n```sh\ntrue\n"))


@pytest.mark.parametrize(
    ("expected", "printed", "missing"),
    [
        ("a\nb", "a\nx\nb", []),
        ("b\na", "a\nb", ["a"]),
        ("took ... s", "took 1.5 s", []),
        ("took ... s", "took 1.5 min", ["took ... s"]),
        ("...\na", "a", []),
    ],
)
def test_output_is_compared_line_by_line(expected, printed, missing):
    assert missing_lines(expected, printed) == missing
