"""`mimetic train`: teach a policy from recorded demonstrations, or continue a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimetic.cli.places import require_writable
from mimetic.config import sources
from mimetic.config.parse import parse
from mimetic.config.problems import Problems
from mimetic.config.tokens import read_tokens
from mimetic.errors import ConfigError
from mimetic.hub.checkpoints import looks_like_hub_id, settings_file
from mimetic.policies.own_settings import stored_settings
from mimetic.train.config import TrainConfig
from mimetic.train.preset import with_preset

if TYPE_CHECKING:
    from mimetic.train.env_eval import EnvironmentEvaluation
    from mimetic.train.hub_resume import HubRun

__all__ = ["SUMMARY", "load_file", "load_policy", "main", "with_preset"]  # `--print_config` uses all but SUMMARY, main

SUMMARY = "Train a policy on recorded demonstrations, or continue a run"

logger = logging.getLogger(__name__)


def main(argv: list[str], *, debug: bool) -> int:
    """Run the command.

    Args:
        argv: flags after `mimetic train`.
        debug: whether debug messages are shown.

    Raises:
        MimeticError: anything that the user can mend.
    """
    found: list[Path | HubRun] = []

    def load(place: str) -> tuple[Mapping[str, Any], str]:
        if not _resumes(argv):
            return load_file(place)
        if looks_like_hub_id(place):
            from mimetic.train.hub_resume import HubRun

            run = HubRun(place)
            found.append(run)
            return run.settings(), run.where
        from mimetic.train.resume import find_checkpoint

        checkpoint = find_checkpoint(place)
        found.append(checkpoint.folder)
        return checkpoint.settings(), str(checkpoint.pretrained)

    _require_run(argv)
    parsed = parse(TrainConfig, argv, prog="mimetic train", load_file=load, load_policy=load_policy)
    for note in parsed.notes:
        logger.info("%s", note)
    config: TrainConfig = parsed.value
    if config.resume and found:
        config = _continued(config, parsed.origins, found[0])
    if config.output_dir is not None:
        require_writable(config.output_dir)
    from mimetic.train.run import train

    train(config, origins=parsed.origins, play=_environment(config))
    return 0


def _environment(config: TrainConfig) -> EnvironmentEvaluation | None:
    """Who lets the policy play in `--env` during training."""
    if config.env is None or config.env_eval_freq <= 0:
        return None
    from mimetic.evaluate.rollout.in_training import InTraining

    return InTraining(config)


def _continued(config: TrainConfig, origins: Mapping[str, str], run: Path | HubRun) -> TrainConfig:
    """Settings of a run that goes on, with the checkpoint that it goes on from; one on the hub is fetched now."""
    if isinstance(run, Path):
        return replace(config, checkpoint_path=run)
    # The stored folder is one of the machine that the run began on.
    given = config.output_dir if origins.get("output_dir") == "flag" else None
    if given is not None:
        require_writable(given)
    checkpoint = run.fetch(given)
    return replace(config, checkpoint_path=checkpoint.folder, output_dir=given or checkpoint.run)


def load_file(place: str) -> tuple[Mapping[str, Any], str]:
    """Settings behind `--config_path`, and the file that they stand in: on this machine, else on the hub."""
    if looks_like_hub_id(place):
        return sources.load_file(str(settings_file(place)))
    return sources.load_file(place)


def load_policy(place: str, revision: str | None = None) -> Mapping[str, Any]:
    """Settings of the policy behind `--policy.path`: a folder, a run, or a hub id."""
    return stored_settings(place, revision)


def _require_run(argv: list[str]) -> None:
    """Refuse `--resume=true` that does not say of which run, before its missing settings are asked for."""
    given = {token.name: token.value for token in read_tokens(argv, Problems()) if token.text is not None}
    if _resumes(argv) and "config_path" not in given:
        run = given.get("output_dir", given.get("policy.path", "RUN"))
        raise ConfigError(
            "`--resume=true` needs `--config_path`, the run or checkpoint to continue",
            f"`mimetic train --resume=true --config_path={run}`",
        )


def _resumes(argv: list[str]) -> bool:
    """Whether the last `--resume` says true; the parser, which comes later, judges what cannot be read."""
    values = [token.value for token in read_tokens(argv, Problems()) if token.name == "resume"]
    return bool(values) and values[-1].lower() in ("true", "yes", "on")
