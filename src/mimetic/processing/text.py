"""Task texts to token ids, as transformers' AutoTokenizer gives them (spec/smolvla.md 5.1, 9.1).

The files are data: `tokenizer.json` is read by the library `tokenizers`, and of `tokenizer_config.json` only the
special tokens and the truncation side count. No code that a file names is run.

One difference is meant: where `tokenizer_config.json` names the class GPT2Tokenizer, transformers 5 splits texts by
that class's rule instead of the file's, which is a known fault there (transformers 4 did not). The file is followed
here, as the model was trained. With this backbone's vocabulary only digits after two or more blanks are affected.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimetic import log
from mimetic.errors import CheckpointError, ConfigError, MissingExtra
from mimetic.names import TOKENIZER_FILES
from mimetic.processing.text_limits import excess

if TYPE_CHECKING:
    from tokenizers import Tokenizer

logger = logging.getLogger(__name__)

TOKENIZER_JSON, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS = TOKENIZER_FILES
LARGEST_FILE = 50_000_000
"""A larger file is refused [bytes]; the largest tokenizers in use have 35 MB."""
_REMEMBERED_TEXTS = 4096
_QUOTED_CHARACTERS = 300
_NOT_OURS = (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)
"""All else that comes out of the library means a bad file or text: it raises bare `Exception`, and `PanicException`,
which is none."""
_ADDED_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


class TextTokenizer:
    """A tokenizer with its padding token and its truncation side; texts that it has seen are remembered.

    Args:
        files: content by name, of `TOKENIZER_FILES`; `tokenizer.json` is needed.
        where: folder, for messages.

    Raises:
        MissingExtra: the library `tokenizers` is not installed.
        CheckpointError: a file is damaged, or no padding token is named.
    """

    def __init__(self, files: Mapping[str, bytes], where: str) -> None:
        self.files = dict(files)
        self.where = where
        settings = _json(files, TOKENIZER_CONFIG, where)
        # Once `added_tokens_decoder` is there, the older files beside it have no say.
        if "added_tokens_decoder" not in settings:
            older = _json(files, SPECIAL_TOKENS_MAP, where)
            if "additional_special_tokens" in older:  # the older name of `extra_special_tokens`
                settings["extra_special_tokens"] = older["additional_special_tokens"]
            settings.update(older)
        self._tokenizer = _parse(files[TOKENIZER_JSON], where)
        try:
            _add_tokens(self._tokenizer, settings, _json(files, ADDED_TOKENS, where))
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _damaged(TOKENIZER_CONFIG, where, str(error)) from error
        self.truncation_side = settings.get("truncation_side", "right")
        if self.truncation_side not in ("left", "right"):
            raise _damaged(TOKENIZER_CONFIG, where, f"its `truncation_side` is {self.truncation_side!r}")
        self.pad = self._pad_id(settings)
        self.encode = lru_cache(_REMEMBERED_TEXTS)(self._encode)
        """`_encode`, remembered: the tasks of a dataset are few, and each comes in every batch."""

    def __reduce__(self) -> tuple[type, tuple[dict[str, bytes], str]]:
        return (type(self), (self.files, self.where))

    def _pad_id(self, settings: Mapping[str, Any]) -> int:
        content = _content(settings.get("pad_token"))
        found = None if content is None else self._tokenizer.token_to_id(content)
        if found is None:
            raise CheckpointError(
                f"the tokenizer in `{self.where}` names no padding token (`pad_token` in {TOKENIZER_CONFIG})",
                "copy all files of the tokenizer again",
            )
        return int(found)

    def _encode(self, text: str, max_length: int | None) -> tuple[int, ...]:
        """Token ids of a text; what is over the limit is cut on the truncation side and told once.

        Args:
            text: the text; no line break is added.
            max_length: most tokens; None for no limit.

        Raises:
            ConfigError: the text cannot be expressed in this tokenizer's vocabulary.
        """
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        except _NOT_OURS:
            raise
        except BaseException as error:
            raise ConfigError(
                f"the tokenizer in `{self.where}` cannot read the task {_shortened(text)!r}: {str(error)[:200]}",
                "write the task in plain characters",
            ) from error
        ids = encoding.ids
        room = len(ids)
        if max_length is not None:
            room = max(0, max_length - self._tokenizer.num_special_tokens_to_add(False))
        if len(ids) > room:
            first = len(ids) - room if self.truncation_side == "left" else room
            edge = encoding.offsets[first][0] if first < len(ids) else len(text)
            lost = text[:edge] if self.truncation_side == "left" else text[edge:]
            log.once(
                logger,
                logging.WARNING,
                "a task has %d tokens and only %d are read; its %s is lost: %r; raise --policy.tokenizer_max_length or"
                " shorten the task: %r",
                len(ids),
                room,
                "beginning" if self.truncation_side == "left" else "end",
                _shortened(lost),
                _shortened(text),
            )
            encoding.truncate(room, direction=self.truncation_side)
        return tuple(self._tokenizer.post_process(encoding).ids)


def read_tokenizer(paths: Mapping[str, Path], where: str) -> TextTokenizer:
    """The tokenizer of some files; the same files give the same object, so that it is parsed once.

    Args:
        paths: path by name, of `TOKENIZER_FILES`.
        where: folder, for messages.

    Raises:
        MissingExtra: the library `tokenizers` is not installed.
        CheckpointError: a file is damaged or too large, or no padding token is named.
    """
    try:
        states = {name: path.stat() for name, path in paths.items()}
    except OSError as error:
        raise CheckpointError(f"`{where}` cannot be read: {error.strerror}") from error
    for name, state in states.items():
        if state.st_size > LARGEST_FILE:
            raise CheckpointError(
                f"`{name}` in `{where}` has {state.st_size / 1e6:.0f} MB, more than any tokenizer "
                f"({LARGEST_FILE / 1e6:.0f} MB)",
                "do not use this checkpoint unless you know where it comes from",
            )
    key = tuple((name, str(path), states[name].st_mtime_ns, states[name].st_size) for name, path in paths.items())
    return _shared(key, where)


@lru_cache(maxsize=8)
def _shared(key: tuple[tuple[str, str, int, int], ...], where: str) -> TextTokenizer:
    try:
        files = {name: Path(path).read_bytes() for name, path, _, _ in key}
    except OSError as error:
        raise CheckpointError(f"`{where}` cannot be read: {error.strerror}") from error
    return TextTokenizer(files, where)


def _json(files: Mapping[str, bytes], name: str, where: str) -> dict[str, Any]:
    """An optional file that holds an object."""
    if name not in files:
        return {}
    try:
        content = json.loads(files[name])
    except (ValueError, RecursionError) as error:
        raise _damaged(name, where, str(error)) from error
    if not isinstance(content, dict):
        raise _damaged(name, where, f"it holds a {type(content).__name__}, not an object")
    return content


def _parse(content: bytes, where: str) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "`tokenizers` is not installed, which turns the words of a task into tokens",
            '`pip install "mimetic[smolvla]"`',
        ) from error
    try:
        tokenizer = Tokenizer.from_str(content.decode())
        problem = excess(tokenizer)
    except _NOT_OURS:
        raise
    except BaseException as error:
        raise _damaged(TOKENIZER_JSON, where, str(error)[:200]) from error
    if problem:
        raise CheckpointError(
            f"`{TOKENIZER_JSON}` in `{where}`: {problem}",
            "do not use this checkpoint unless you know where it comes from",
        )
    # Limits and padding are the step's, whatever the file says.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, settings: Mapping[str, Any], added: Mapping[str, Any]) -> None:
    """Add what the side files name and `tokenizer.json` lacks; new ids count on from the vocabulary's end."""
    from tokenizers import AddedToken

    for _, token in sorted(settings.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0])):
        if tokenizer.token_to_id(token["content"]) is None:
            flags = {flag: bool(token.get(flag, False)) for flag in _ADDED_FLAGS}
            kind = AddedToken(token["content"], special=bool(token.get("special", False)), **flags)
            (tokenizer.add_special_tokens if kind.special else tokenizer.add_tokens)([kind])
    for content, _ in sorted(added.items(), key=lambda item: int(item[1])):
        if tokenizer.token_to_id(content) is None:
            tokenizer.add_tokens([AddedToken(content, normalized=False)])
    for content in _special_tokens(settings):
        if tokenizer.token_to_id(content) is None:
            tokenizer.add_special_tokens([AddedToken(content, normalized=False, special=True)])


def _special_tokens(settings: Mapping[str, Any]) -> Iterator[str]:
    """Texts of the special tokens that the settings name, in their order."""
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    named = [value for key, value in settings.items() if key.endswith("_token")]
    for value in [*named, *(extra.values() if isinstance(extra, dict) else extra)]:
        content = _content(value)
        if content:
            yield content


def _content(token: Any) -> str | None:
    """Text of a token that stands as a text or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _damaged(name: str, where: str, why: str) -> CheckpointError:
    return CheckpointError(f"`{name}` in `{where}` is damaged: {why}", "copy the tokenizer's files again")


def _shortened(text: str) -> str:
    return text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]}..."
