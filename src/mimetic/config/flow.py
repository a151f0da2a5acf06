"""YAML text to plain data, without YAML's surprises: no tags, no implicit types, no code.

PyYAML finds the structure; every scalar without quotes stays `Plain` for the grammar of `values`. Imported only when a
bracketed value that is not JSON, or a YAML file, is really read.
"""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import Composer
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from mimetic.config.values import Mismatch, Plain

_MAX_NODES = 100_000
_STANDARD_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map")}


class _StructureLoader(Reader, Scanner, Parser, Composer, BaseResolver):
    """Finds structure only; resolves no types and constructs no objects."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)


def read_flow(text: str) -> Any:
    """Read one bracketed or quoted value, such as `{type: act, chunk_size: 8}`.

    Args:
        text: the value without surrounding white space.

    Returns:
        Lists, dicts, str (quoted) and Plain (not quoted).

    Raises:
        Mismatch: brackets or quotes are not closed, something follows them, or a name stands twice.
    """
    node = _compose(text)
    if node is None or node.end_mark.index < len(text):
        end = text[node.end_mark.index :].strip() if node is not None else text
        raise Mismatch(f"nothing after the closing bracket, and got `{end}`")
    return _plain_data(node, [0])


def read_yaml(text: str) -> Any:
    """Read a YAML document; an empty one gives None.

    Raises:
        Mismatch: the text is not one YAML document without tags; the message holds line and column.
    """
    node = _compose(text)
    return None if node is None else _plain_data(node, [0])


def _compose(text: str) -> Any:
    try:
        return _StructureLoader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark
        where = f" (line {place.line + 1}, column {place.column + 1})" if place is not None else ""
        raise Mismatch("brackets and quotes that match", f"{error.problem}{where}") from None
    except yaml.YAMLError as error:
        raise Mismatch(f"YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise Mismatch("a value that is nested less deeply") from None


def _plain_data(node: Any, count: list[int]) -> Any:
    """Nodes to data; `count` bounds the work, since a few aliases can stand for millions of nodes."""
    count[0] += 1
    if count[0] > _MAX_NODES:
        raise Mismatch(f"at most {_MAX_NODES} values")
    if node.tag not in _STANDARD_TAGS:
        raise Mismatch(f"no tags, and got `{node.tag}` (line {node.start_mark.line + 1})", "remove the word with `!`")
    if isinstance(node, yaml.ScalarNode):
        if node.style is not None:
            return node.value
        return Plain(node.value) if node.value else None
    if isinstance(node, yaml.SequenceNode):
        return [_plain_data(item, count) for item in node.value]
    data: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _plain_data(key_node, count)
        if not isinstance(key, str):
            raise Mismatch("names that are text")
        is_bare = isinstance(value_node, yaml.ScalarNode) and value_node.style is None and not value_node.value
        if is_bare and ":" in key:
            raise Mismatch("a space after each colon", f"write `{key.replace(':', ': ', 1)}`")
        if key in data:
            raise Mismatch(f"each name once, and `{key}` stands twice")
        data[str(key)] = _plain_data(value_node, count)
    return data
