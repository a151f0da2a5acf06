"""The tokens of a batch, checked on the host before a device looks them up."""

from __future__ import annotations

from torch import Tensor

from mimetic.errors import CheckpointError, ShapeError
from mimetic.names import LANGUAGE_LARGEST, LANGUAGE_LONGEST, LANGUAGE_MASK, LANGUAGE_TOKENS
from mimetic.policies.base import Batch


def take_language(batch: Batch, *, rows: int, vocab_size: int, keep_padding: bool) -> tuple[Tensor, Tensor]:
    """Token ids and their mask.

    Nothing is read back from a device: ids that lie on one are checked by `observation.language.largest`, which the
    tokenizer step sets, or not at all.

    Args:
        batch: preprocessed batch.
        rows: its samples, B.
        vocab_size: token embeddings of the model.
        keep_padding: leave columns that are padding in every sample.

    Returns:
        Ids (B, n) int64, and mask (B, n) bool with true for tokens.

    Raises:
        ShapeError: there are none, or they are not one task a sample.
        CheckpointError: an id without an embedding, so the tokenizer is another model's.
    """
    tokens, mask = batch.get(LANGUAGE_TOKENS), batch.get(LANGUAGE_MASK)
    if not isinstance(tokens, Tensor) or not isinstance(mask, Tensor):
        raise ShapeError(
            f"the batch has no `{LANGUAGE_TOKENS}` and `{LANGUAGE_MASK}`, which SmolVLA reads the task from",
            "run the policy's preprocessor on a batch with a `task`",
        )
    if tokens.ndim != 2 or tokens.shape != mask.shape or tokens.is_floating_point():
        raise ShapeError(
            f"`{LANGUAGE_TOKENS}` is {tokens.dtype} of shape {tuple(tokens.shape)} and its mask has shape "
            f"{tuple(mask.shape)}; both must be (batch, tokens), and ids whole numbers",
            "run the policy's preprocessor on a batch with a `task`",
        )
    if tokens.shape[0] != rows:
        raise ShapeError(
            f"the batch has {tokens.shape[0]} tasks and {rows} samples", "give `task` as a list with one text a sample"
        )
    _check_ids(tokens, batch.get(LANGUAGE_LARGEST), vocab_size)
    mask = mask.bool()
    longest = mask.shape[1] if keep_padding else _longest(mask, batch.get(LANGUAGE_LONGEST))
    return tokens[:, :longest], mask[:, :longest]


def _check_ids(tokens: Tensor, largest: object, vocab_size: int) -> None:
    smallest = 0
    if tokens.device.type == "cpu" and tokens.numel():
        smallest, largest = int(tokens.min()), int(tokens.max())
    if smallest < 0 or (isinstance(largest, int) and largest >= vocab_size):
        raise CheckpointError(
            f"a task has the token id {smallest if smallest < 0 else largest}, and the model has embeddings for 0 to "
            f"{vocab_size - 1}: the tokenizer belongs to another model",
            "copy the folder `tokenizer/` of the checkpoint again, or name the policy's own vision-language model with "
            "`--policy.vlm_model_name`",
        )


def _longest(mask: Tensor, told: object) -> int:
    """The most columns that a sample uses."""
    if isinstance(told, int):
        return told
    if mask.device.type != "cpu":
        return mask.shape[1]
    return int(mask.any(dim=0).nonzero().max()) + 1 if bool(mask.any()) else 0
