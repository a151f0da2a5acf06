"""The pipelines of every policy without steps of its own, such as ACT, and the frame of the others.

Before the policy: rename, to_batch, the steps of its own, device, normalise. After it: unnormalise, to the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mimetic.features import NormalizationMode, PolicyFeature
from mimetic.names import POSTPROCESSOR, PREPROCESSOR
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.stats import Stats, check_stats, rename_stats
from mimetic.processing.step import Step
from mimetic.processing.steps.device import MoveToDevice
from mimetic.processing.steps.normalizer import Normalizer
from mimetic.processing.steps.rename_observations import RenameObservations
from mimetic.processing.steps.to_batch import ToBatch
from mimetic.processing.steps.unnormalizer import Unnormalizer


def standard_pipelines(
    *,
    input_features: Mapping[str, PolicyFeature],
    output_features: Mapping[str, PolicyFeature],
    norm_map: Mapping[str, NormalizationMode],
    stats: Stats,
    device: str = "cpu",
    rename_map: Mapping[str, str] | None = None,
    exact: bool = False,
    where: str = "the dataset's statistics",
    own_steps: Sequence[Step] = (),
) -> tuple[Pipeline, Pipeline]:
    """Build the pipelines before and after a policy.

    Args:
        input_features: what the policy reads, by the policy's names; the order of cameras is part of the model.
        output_features: what it predicts.
        norm_map: normalisation mode by feature type name.
        stats: statistics by feature, under the dataset's names (renamed here) or the policy's.
        device: device of the policy.
        rename_map: dataset name -> policy name.
        exact: reproduce LeRobot's formulas in near-constant dimensions.
        where: where the statistics come from, for messages.
        own_steps: steps of the policy's kind; they run on the CPU, on batches with renamed keys.

    Returns:
        Preprocessor (batch to batch) and postprocessor (`run_action`, ends on the CPU).

    Raises:
        StatsError: statistics are missing, incomplete or wrong for a feature that is normalised.
        DeviceError: the device is not there.
    """
    stats = rename_stats(stats, rename_map or {})
    features = {**input_features, **output_features}
    check_stats(features, norm_map, stats, where=where)
    before = Pipeline(
        PREPROCESSOR,
        [
            RenameObservations(rename_map),
            ToBatch(),
            *own_steps,
            MoveToDevice(device),
            Normalizer(features, norm_map, stats, exact=exact),
        ],
    )
    after = Pipeline(
        POSTPROCESSOR,
        [Unnormalizer(output_features, norm_map, stats, exact=exact), MoveToDevice("cpu")],
    )
    return before, after
