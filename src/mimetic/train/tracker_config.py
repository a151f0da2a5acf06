"""Settings of the places that a run's numbers are copied to (`--wandb.*`, `--trackio.*`, `--tensorboard.*`)."""

from __future__ import annotations

from dataclasses import dataclass

from mimetic.fields import setting

_WANDB_MODES = ("online", "offline", "disabled")


@dataclass(frozen=True, kw_only=True)
class WandbConfig:
    """Logging to Weights & Biases (`--wandb.*`)."""

    enable: bool = setting(
        False, "Send the values of metrics.jsonl to Weights & Biases too; needs `pip install 'mimetic[wandb]'`"
    )
    disable_artifact: bool = setting(False, "Do not hand checkpoints to wandb as artifacts")
    project: str = setting("lerobot", "Project")
    entity: str | None = setting(None, "User or team")
    notes: str | None = setting(None, "Notes of the run")
    run_id: str | None = setting(None, "Id of the run there; a resumed run keeps its own")
    mode: str | None = setting(None, "online, offline or disabled; null: what WANDB_MODE says, else online")
    add_tags: bool = setting(True, "Tag the run with policy, seed, dataset and environment")

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        if self.mode in (None, *_WANDB_MODES):
            return []
        return [f"`--wandb.mode={self.mode}` must be one of {', '.join(_WANDB_MODES)}"]


@dataclass(frozen=True, kw_only=True)
class TrackioConfig:
    """Logging to trackio, which keeps runs on this machine (`--trackio.*`)."""

    enable: bool = setting(
        False,
        "Write the values of metrics.jsonl to trackio too, on this machine; `trackio show` opens them. Needs "
        "`pip install 'mimetic[trackio]'`",
        layer="mimetic",
    )
    project: str = setting("mimetic", "Project of trackio, a database of its own", layer="mimetic")


@dataclass(frozen=True, kw_only=True)
class TensorBoardConfig:
    """Logging to TensorBoard (`--tensorboard.*`)."""

    enable: bool = setting(
        False,
        "Write the values of metrics.jsonl to the run's folder `tensorboard` too; `tensorboard --logdir` opens it. "
        "Needs `pip install 'mimetic[tensorboard]'`",
        layer="mimetic",
    )
