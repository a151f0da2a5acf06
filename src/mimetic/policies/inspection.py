"""What is inside a checkpoint, and what is wrong with it, without running it (`mimetic inspect`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mimetic.errors import CheckpointError, MimeticError
from mimetic.features import NormalizationMode
from mimetic.hub.policies import find_policy
from mimetic.names import ADAPTER_WEIGHTS, POSTPROCESSOR, PREPROCESSOR, TRAINING_STATE_DIR, TRAINING_STEP_JSON, WEIGHTS
from mimetic.policies.adapter_config import is_adapter, read_adapter_config
from mimetic.policies.adapters import attach_stored, compare_adapter, find_base
from mimetic.policies.base import Policy
from mimetic.policies.build import make_policy
from mimetic.policies.checkpoint import compare_weights, read_config
from mimetic.policies.config import PolicyConfig
from mimetic.policies.legacy import has_pipelines
from mimetic.policies.pipelines import load_pipelines
from mimetic.policies.report import LoadReport
from mimetic.policies.tensors import SkipInitialisation, WeightsFile, open_weights
from mimetic.processing.normalization_step import NormalizationStep
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.stats import STATS_OF_MODE
from mimetic.processing.steps.rename_observations import RenameObservations
from mimetic.processing.store import read_json


@dataclass
class FeatureRow:
    """One input or output.

    Args:
        name: feature name.
        role: "input" or "output".
        type: feature type.
        shape: shape of one frame.
        mode: normalisation mode.
        statistics: statistics in use, such as ["mean", "std"]; empty for IDENTITY or when they are missing.
        source: file of the statistics; empty without statistics.
        constant_dims: near-constant dimensions, which are treated as constant.
    """

    name: str
    role: str
    type: str
    shape: list[int]
    mode: str
    statistics: list[str] = field(default_factory=list)
    source: str = ""
    constant_dims: list[int] = field(default_factory=list)


@dataclass
class Inspection:
    """Everything that `mimetic inspect` shows.

    Args:
        folder: the `pretrained_model` folder.
        policy: policy type.
        config: the policy's settings.
        is_legacy: statistics stand among the weights.
        features: inputs, then outputs.
        cameras: names in the order that the network sees.
        rename_map: names in the dataset that was trained on, and those of the policy.
        parameters: number of trainable values of the network; None when it could not be built.
        buffers: number of values in persistent buffers.
        weights_bytes: size of the weights file.
        dtypes: stored values by dtype.
        report: how weights and network compare.
        steps: registry names by pipeline.
        adapter: one line on the adapter, with its base policy; empty for a whole policy.
        training_step: step of the run; None outside a checkpoint.
        problems: what keeps the checkpoint from being used, each with its hint.
    """

    folder: Path
    policy: str
    config: PolicyConfig
    is_legacy: bool = False
    features: list[FeatureRow] = field(default_factory=list)
    cameras: list[str] = field(default_factory=list)
    rename_map: dict[str, str] = field(default_factory=dict)
    parameters: int | None = None
    buffers: int | None = None
    weights_bytes: int = 0
    dtypes: dict[str, int] = field(default_factory=dict)
    report: LoadReport | None = None
    steps: dict[str, list[str]] = field(default_factory=dict)
    adapter: str = ""
    training_step: int | None = None
    problems: list[tuple[str, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        report = self.report
        return {
            "folder": str(self.folder),
            "policy": self.policy,
            "is_legacy": self.is_legacy,
            "adapter": self.adapter,
            "training_step": self.training_step,
            "features": [vars(row) for row in self.features],
            "cameras": self.cameras,
            "rename_map": self.rename_map,
            "parameters": self.parameters,
            "buffers": self.buffers,
            "weights_bytes": self.weights_bytes,
            "dtypes": self.dtypes,
            "weights": None
            if report is None
            else {
                "matched": len(report.matched),
                "missing": list(report.missing),
                "unexpected": list(report.unexpected),
                "mismatched": [vars(m) for m in report.mismatched],
                "reinitialised": list(report.reinitialised),
                "ignored": list(report.ignored),
            },
            "pipelines": self.steps,
            "problems": [{"message": message, "hint": hint} for message, hint in self.problems],
        }


def inspect_checkpoint(
    path: str | Path, *, allow_missing: Sequence[str] = (), stats_dataset: str | None = None
) -> Inspection:
    """Look into a checkpoint; whatever is wrong beyond its config is listed, not raised.

    Args:
        path: a `pretrained_model` folder, a checkpoint, or a run's output folder.
        allow_missing: shell patterns of tensor names that may differ.
        stats_dataset: whose statistics to take where there are those of several datasets.

    Raises:
        CheckpointNotFound: there is no checkpoint.
        CheckpointError: its `config.json` cannot be understood.
    """
    folder = find_policy(path)
    config = read_config(folder)
    found = Inspection(folder, config.type_name, config, is_legacy=not has_pipelines(folder))
    found.cameras = list(config.image_features)
    found.training_step = _training_step(folder, found)
    _inspect_weights(found, allow_missing)
    pipelines: tuple[Pipeline, Pipeline] | None = None
    try:
        pipelines = load_pipelines(folder, config, stats_dataset=stats_dataset)
        for step in pipelines[0].find(RenameObservations):
            found.rename_map.update(step.rename_map)
        found.steps = {p.name: [step.registry_name for step in p.steps] for p in pipelines}
    except MimeticError as error:
        found.problems.append((error.message, error.hint))
    _inspect_features(found, pipelines)
    return found


def _training_step(folder: Path, found: Inspection) -> int | None:
    path = folder.parent / TRAINING_STATE_DIR / TRAINING_STEP_JSON
    if not path.is_file():
        return None
    try:
        return int(read_json(path)["step"])
    except (CheckpointError, KeyError, TypeError, ValueError):
        found.problems.append((f"`{path}` does not tell the step", "the training state is damaged"))
        return None


def _inspect_weights(found: Inspection, allow_missing: Sequence[str]) -> None:
    try:
        # Nothing is initialised, so hardly any memory is touched; the names and shapes are what counts.
        with SkipInitialisation():
            policy = make_policy(found.config, device="cpu", init_backbone=False)
        found.parameters = sum(p.numel() for p in policy.parameters())
        found.buffers = sum(t.numel() for t in policy.state_dict().values()) - found.parameters
        if is_adapter(found.folder, use_peft=found.config.use_peft):
            file, found.report = _inspect_adapter(found, policy, allow_missing)
        else:
            file, found.report = compare_weights(policy, found.folder, allow_missing)
        found.weights_bytes = file.path.stat().st_size
        dtypes: Counter[str] = Counter()
        for info in file.tensors.values():
            dtypes[info.dtype] += info.numel
        found.dtypes = dict(dtypes)
        found.report.require_complete(f"`{file.path}`")
        bad = _not_finite(file)
        if bad:
            names = ", ".join(f"`{name}`" for name in bad[:5])
            found.problems.append(
                (
                    f"`{file.path}`: {len(bad)} tensors hold NaN or infinity: {names}",
                    "use an older checkpoint of the run",
                )
            )
    except MimeticError as error:
        found.problems.append((error.message, error.hint))


def _inspect_adapter(found: Inspection, policy: Policy, allow_missing: Sequence[str]) -> tuple[WeightsFile, LoadReport]:
    """The adapter's own file, compared with what it is attached to; its base is only looked up."""
    adapter = read_adapter_config(found.folder)
    found.adapter = (
        f"LoRA, rank {adapter.r}, alpha {adapter.lora_alpha:g}, on the policy {adapter.base_model_name_or_path}"
    )
    attach_stored(policy, found.folder, adapter)
    found.parameters = sum(p.numel() for p in policy.parameters())
    try:
        find_base(found.folder, adapter)
    except MimeticError as error:
        found.problems.append((error.message, error.hint))
    return open_weights(found.folder / ADAPTER_WEIGHTS), compare_adapter(policy, found.folder, allow_missing)


def _not_finite(file: WeightsFile) -> list[str]:
    with file.reading() as read:
        return [
            name
            for name in file.tensors
            if (tensor := read(name)).is_floating_point() and not bool(torch.isfinite(tensor).all())
        ]


def _inspect_features(found: Inspection, pipelines: tuple[Pipeline, Pipeline] | None) -> None:
    config = found.config
    sources = dict(zip((PREPROCESSOR, POSTPROCESSOR), pipelines or (), strict=False))
    for role, features, pipeline in (
        ("input", config.input_features, sources.get(PREPROCESSOR)),
        ("output", config.output_features, sources.get(POSTPROCESSOR)),
    ):
        for name, feature in (features or {}).items():
            step, source = _normalisation(pipeline, name, found)
            mode = step.mode_of(feature) if step is not None else _mode(config.norm_map, feature.type.value)
            row = FeatureRow(name, role, feature.type.value, list(feature.shape), mode.value)
            if step is not None and STATS_OF_MODE[mode]:
                row.statistics, row.source = list(STATS_OF_MODE[mode]), source
                row.constant_dims = step.constant_dims().get(name, [])
            found.features.append(row)


def _mode(norm_map: Mapping[str, NormalizationMode], kind: str) -> NormalizationMode:
    return norm_map.get(kind, NormalizationMode.IDENTITY)


def _normalisation(pipeline: Pipeline | None, name: str, found: Inspection) -> tuple[NormalizationStep | None, str]:
    """The step that normalises a feature, and the file of its statistics."""
    if pipeline is None:
        return None, ""
    for index, step in enumerate(pipeline.steps):
        if isinstance(step, NormalizationStep) and name in step.features:
            stored = f"{pipeline.name}_step_{index}_{step.registry_name}.safetensors"
            return step, WEIGHTS if found.is_legacy else stored
    return None, ""
