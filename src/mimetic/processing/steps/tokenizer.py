"""`tokenizer_processor`: the texts of a batch as token ids (spec/smolvla.md 9.1)."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from mimetic import log
from mimetic.errors import CheckpointError, CheckpointNotFound, ConfigError, HubError
from mimetic.hub.tokenizers import find_tokenizer
from mimetic.names import (
    LANGUAGE_LARGEST,
    LANGUAGE_LONGEST,
    LANGUAGE_MASK,
    LANGUAGE_TOKENS,
    NETWORK_PATHS,
    TASK,
    TOKENIZER_DIR,
    TOKENIZER_FILES,
)
from mimetic.processing.step import Step
from mimetic.processing.store import resolve_inside
from mimetic.processing.text import TextTokenizer, read_tokenizer
from mimetic.processing.transition import Transition

logger = logging.getLogger(__name__)

SUBTASK = "subtask"
SUBTASK_TOKENS = "observation.subtask.tokens"
SUBTASK_MASK = "observation.subtask.attention_mask"
PADDINGS = ("longest", "max_length")
_SIDES = ("left", "right")
_LONGEST = 16_384
"""More tokens than any text model of a policy reads; a file could otherwise ask for any amount of padding."""


class Tokenize(Step):
    """Adds token ids, their mask and the length of the longest text to the observations.

    `observation.language.tokens` (B, n) int64, `observation.language.attention_mask` (B, n) bool with true for tokens,
    both on the device of the first observation. Two Python ints, known here without asking a device:
    `observation.language.longest`, columns from the left that hold tokens, and `observation.language.largest`, the
    largest id. Where a `subtask` arrives, it gets tokens and a mask too.

    The tokenizer is read at first use: from the folder `tokenizer/` of the checkpoint if there is one, else from the
    folder or hub id `tokenizer_name`. It is written into the checkpoints that this step is part of.

    Args:
        max_length: most tokens of a text, and the padded length when `padding` is "max_length".
        task_key: the batch's entry with the texts.
        padding_side: where padding goes, "right" or "left".
        padding: "longest" pads to the longest text of the batch, "max_length" always to `max_length`.
        truncation: cut longer texts, on the side that the tokenizer's own files say.
        tokenizer_name: a folder or a hub id; None needs a folder `tokenizer/` beside the pipeline file.

    Raises:
        ConfigError: a value that is not of these.
    """

    registry_name: ClassVar[str] = "tokenizer_processor"
    stored: ClassVar[tuple[str, ...]] = (
        "max_length",
        "task_key",
        "padding_side",
        "padding",
        "truncation",
        "tokenizer_name",
    )

    def __init__(
        self,
        max_length: int = 512,
        task_key: str = TASK,
        padding_side: str = "right",
        padding: str | bool = "max_length",
        truncation: bool = True,
        tokenizer_name: str | None = None,
    ) -> None:
        # Types are checked too, because the arguments come from files.
        for name, value, is_right, expected in (
            (
                "max_length",
                max_length,
                type(max_length) is int and 0 < max_length <= _LONGEST,
                f"a whole number from 1 to {_LONGEST}",
            ),
            ("task_key", task_key, isinstance(task_key, str), "a text"),
            ("padding_side", padding_side, padding_side in _SIDES, " or ".join(_SIDES)),
            ("padding", padding, padding is True or padding in PADDINGS, " or ".join(PADDINGS)),
            ("truncation", truncation, isinstance(truncation, bool), "true or false"),
            ("tokenizer_name", tokenizer_name, isinstance(tokenizer_name, str | None), "a folder or a hub id"),
        ):
            if not is_right:
                raise ConfigError(f"`{name}` is {value!r}, and must be {expected}")
        self.max_length = max_length
        self.task_key = task_key
        self.padding_side = padding_side
        self.padding = padding
        self.truncation = truncation
        self.tokenizer_name = tokenizer_name
        self._folder: Path | None = None
        self._paths: dict[str, Path] = {}
        self._tokenizer: TextTokenizer | None = None

    @classmethod
    def build(cls, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Self:
        """Make the step from a file and the caller's overrides.

        Raises:
            ConfigError: an argument that this step does not have, or a wrong value.
            CheckpointError: the file names a folder by a way through `..`, or on another machine; a caller may.
        """
        name = str(config.get("tokenizer_name"))
        is_given = "tokenizer_name" in overrides
        parts = (*PurePosixPath(name).parts, *PureWindowsPath(name).parts)
        if not is_given and (".." in parts or name.startswith(NETWORK_PATHS)):
            raise CheckpointError(
                f"its tokenizer is `{name}`, which mimetic does not follow",
                "give the folder of the vision-language model with `--policy.vlm_model_name`",
            )
        return super().build(config, overrides)

    def located(self, folder: Path, artifacts: Mapping[str, str], where: str) -> None:
        """Use the tokenizer in the checkpoint's folder, if there is one.

        Raises:
            CheckpointError: the folder `tokenizer/` is incomplete, or a link leads out of the checkpoint.
        """
        named = artifacts.get("tokenizer_name")
        if named is None and not os.path.lexists(folder / TOKENIZER_DIR):
            return
        inside = named or TOKENIZER_DIR
        paths = {}
        for index, name in enumerate(TOKENIZER_FILES):
            try:
                paths[name] = resolve_inside(folder, f"{inside}/{name}", where)
            except CheckpointNotFound:
                if index == 0:
                    raise
        self._folder, self._paths, self._tokenizer = folder / inside, paths, None

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer, read at first use.

        Raises:
            CheckpointNotFound: it is not where it should be.
            CheckpointError: a file of it is damaged.
            OfflineError: it is on the hub, and the network is forbidden or not there.
            HubError: the hub refuses.
            MissingExtra: the library `tokenizers` is not installed.
        """
        if self._tokenizer is None:
            if not self._paths:
                if not self.tokenizer_name:
                    raise CheckpointNotFound(
                        f"step `{self.registry_name}` names no tokenizer, and the checkpoint has no `{TOKENIZER_DIR}/`",
                        "copy the checkpoint again with that folder",
                    )
                self._folder = find_tokenizer(self.tokenizer_name)
                files = {name: self._folder / name for name in TOKENIZER_FILES}
                self._paths = {name: path for name, path in files.items() if path.is_file()}
            self._tokenizer = read_tokenizer(self._paths, str(self._folder))
        return self._tokenizer

    def __call__(self, transition: Transition) -> None:
        """Tokenise the task, and the subtask where there is one.

        Raises:
            ConfigError: there is no task, or it is no text.
            CheckpointError: see `tokenizer`; the same holds for the other errors there.
        """
        observation = transition.observation
        device = next((value.device for value in observation.values() if isinstance(value, Tensor)), None)
        tokens, mask, longest = self.tokenise(self._texts(transition, self.task_key))
        observation[LANGUAGE_TOKENS], observation[LANGUAGE_MASK] = tokens.to(device), mask.to(device)
        observation[LANGUAGE_LONGEST] = longest
        observation[LANGUAGE_LARGEST] = int(tokens.max()) if tokens.numel() else 0
        if transition.complementary.get(SUBTASK) is not None:
            tokens, mask, _ = self.tokenise(self._texts(transition, SUBTASK))
            observation[SUBTASK_TOKENS], observation[SUBTASK_MASK] = tokens.to(device), mask.to(device)

    def tokenise(self, texts: Sequence[str]) -> tuple[Tensor, Tensor, int]:
        """Token ids (B, n) int64 and mask (B, n) bool, on the CPU, and how many columns from the left hold tokens."""
        tokenizer = self.tokenizer
        rows = [tokenizer.encode(text, self.max_length if self.truncation else None) for text in texts]
        longest = max(map(len, rows), default=0)
        length = max(longest, self.max_length) if self.padding == "max_length" else longest
        pads = [(tokenizer.pad,) * (length - len(row)) for row in rows]
        lengths, columns = torch.tensor([[len(row)] for row in rows]), torch.arange(length)
        if self.padding_side == "right":
            tokens = torch.tensor([row + pad for row, pad in zip(rows, pads, strict=True)], dtype=torch.int64)
            mask = columns < lengths
        else:
            tokens = torch.tensor([pad + row for row, pad in zip(rows, pads, strict=True)], dtype=torch.int64)
            mask = columns >= length - lengths
            longest = length  # whoever cuts off padding cuts on the right
        return tokens, mask, longest

    def _texts(self, transition: Transition, key: str) -> list[str]:
        value = transition.complementary.get(key)
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, (list, tuple)) and texts and all(isinstance(text, str) for text in texts):
            return list(texts)
        what = f"no `{key}`" if value is None else f"`{key}` = {str(value)[:80]!r} ({type(value).__name__})"
        raise ConfigError(
            f"the policy follows a task given in words, and the batch has {what}",
            f"give the task with each observation, such as {{'{key}': 'pick up the cube'}}; datasets name theirs in"
            " meta/tasks.parquet",
        )

    def config(self) -> dict[str, Any]:
        """All arguments; `tokenizer_name` is left out when there is none."""
        config = {name: getattr(self, name) for name in self.stored}
        if self.tokenizer_name is None:
            del config["tokenizer_name"]
        return config

    def companion_files(self) -> dict[str, bytes]:
        """The tokenizer's files, so that the checkpoint needs neither the network nor the vision-language model."""
        try:
            files = self.tokenizer.files
        except (HubError, CheckpointNotFound) as error:
            log.once(
                logger,
                logging.WARNING,
                "the checkpoint is written without its tokenizer, which it will need to run: %s; %s",
                error.message,
                error.hint,
            )
            return {}
        return {f"{TOKENIZER_DIR}/{name}": content for name, content in files.items()}
