"""From the name of a tokenizer (a folder or a hub id) to the folder with its files."""

from __future__ import annotations

from pathlib import Path

from mimetic.errors import CheckpointNotFound, OfflineError
from mimetic.hub.download import download_snapshot
from mimetic.hub.locate import cached_snapshot, hub_cache, is_offline, local_folder
from mimetic.names import TOKENIZER_FILES


def find_tokenizer(name: str) -> Path:
    """Folder with `tokenizer.json`: a folder on this machine, else the hub's cache, else a download.

    Args:
        name: a folder, or the hub id of a model (`user/name`).

    Raises:
        CheckpointNotFound: the folder is not there, or holds no tokenizer.
        OfflineError: a hub id that is not on this machine, and the network is forbidden or not there.
        HubError: the hub refuses.
    """
    folder = local_folder(name)
    if folder is not None:
        if (folder / TOKENIZER_FILES[0]).is_file():
            return folder
        raise CheckpointNotFound(
            f"no tokenizer at {folder} (expected {TOKENIZER_FILES[0]})",
            "give a folder with the files of the vision-language model's tokenizer",
        )
    if name.count("/") > 1 or name.startswith((".", "/", "~")) or "\\" in name or ":" in name:
        raise CheckpointNotFound(
            f"no tokenizer at {name} (the path does not exist)",
            "give a folder on this machine, or a hub id, with `--policy.vlm_model_name`",
        )
    cached = cached_snapshot(name, "model", None, hub_cache())
    if cached is not None and (cached / TOKENIZER_FILES[0]).is_file():
        return cached
    if is_offline():
        raise OfflineError(
            f"the tokenizer of `{name}` is not on this machine, and HF_HUB_OFFLINE forbids the network",
            "copy the model's folder here and give it with `--policy.vlm_model_name`, or unset HF_HUB_OFFLINE",
        )
    folder = download_snapshot(name, "model", allow_patterns=TOKENIZER_FILES)
    if not (folder / TOKENIZER_FILES[0]).is_file():
        raise CheckpointNotFound(
            f"the hub's model `{name}` has no {TOKENIZER_FILES[0]}",
            "name a model with a tokenizer of that form with `--policy.vlm_model_name`",
        )
    return folder
