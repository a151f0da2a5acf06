"""Whether a dataset fits a policy (dataset_quality 11.5), told from a plain description of the policy."""

from __future__ import annotations

import numpy as np

from mimetic.data.check.finding import Claim
from mimetic.data.check.policy_needs import PolicyNeeds
from mimetic.data.check.results import Results
from mimetic.data.check.source import CheckSource
from mimetic.data.features import policy_features
from mimetic.errors import DatasetError
from mimetic.features import FeatureType
from mimetic.names import ACTION, STATE

POLICY_RULES = (
    *("policy.features", "policy.cameras", "policy.width", "policy.chunk", "policy.fps", "policy.resolution"),
    *("policy.checkpoint", "task.long"),
)
_SHORT_SHARE = 0.3


def check_policy(source: CheckSource, results: Results, needs: PolicyNeeds | None) -> None:
    """Rules `policy.*` and `task.long`."""
    if needs is None:
        results.skip(POLICY_RULES, "no policy is named (--policy.type or --policy.path)")
        return
    if source.info is None:
        results.skip(POLICY_RULES, "info.json cannot be used")
        return
    results.apply("policy.checkpoint", "policy.features")
    for message, hint in needs.problems:
        results.add("policy.checkpoint", message, feature=needs.name, repair=hint)
    _check_features(source, results, needs)
    _check_widths(source, results, needs)
    _check_chunk(source, results, needs)
    _check_rate(source, results, needs)
    _check_resolution(source, results, needs)
    _check_words(source, results, needs)


def _check_features(source: CheckSource, results: Results, needs: PolicyNeeds) -> None:
    if ACTION not in source.features:
        results.add("policy.features", f"the dataset has no `{ACTION}`, which {needs.name} learns", feature=ACTION)
    if not needs.inputs:
        return
    try:
        offered = policy_features(source.features)
    except DatasetError as error:
        results.add("policy.features", error.message)
        return
    offered = {needs.rename.get(name, name): feature for name, feature in offered.items()}
    results.apply("policy.cameras")
    cameras = [name for name, shape in needs.inputs.items() if len(shape) == 3]
    there = [name for name, feature in offered.items() if feature.type is FeatureType.VISUAL]
    missing = [name for name in cameras if name not in there]
    if needs.has_camera_slots and missing and len(there) >= len(cameras):
        results.add(
            "policy.cameras",
            f"{needs.name} calls its cameras {', '.join(cameras)}, the dataset {', '.join(there)}; training matches "
            "them by their order",
            claim=Claim.FACT,
            value=", ".join(there),
            threshold=", ".join(cameras),
        )
    elif missing:
        known = [name for name in there if name not in cameras]
        hint = f'--rename_map={{"{known[0]}": "{missing[0]}"}}' if known else ""
        results.add(
            "policy.cameras",
            f"{needs.name} expects the camera{'s' if missing[1:] else ''} {', '.join(missing)}; the dataset has "
            f"{', '.join(there) or 'none'}",
            claim=Claim.RISK if needs.has_camera_slots else Claim.DEFECT,
            value=", ".join(there),
            threshold=", ".join(cameras),
            repair=hint,
        )
    for name, shape in {**needs.inputs, **needs.outputs}.items():
        if len(shape) == 3 or (name in (STATE, ACTION) and (needs.max_state or needs.max_action)):
            continue
        if name not in offered:
            results.add(
                "policy.features", f"{needs.name} reads `{name}`, which the dataset does not have", feature=name
            )
        elif tuple(offered[name].shape) != tuple(shape):
            results.add(
                "policy.features",
                f"`{name}` has {offered[name].shape[-1]} values, {needs.name} was made for {shape[-1]}",
                feature=name,
                value=float(offered[name].shape[-1]),
                threshold=float(shape[-1]),
            )


def _check_widths(source: CheckSource, results: Results, needs: PolicyNeeds) -> None:
    for key, most in ((STATE, needs.max_state), (ACTION, needs.max_action)):
        feature = source.features.get(key)
        if not most or feature is None:
            continue
        results.apply("policy.width")
        if feature.shape[-1] > most:
            results.add(
                "policy.width",
                f"`{key}` has {feature.shape[-1]} values, {needs.name} takes {most} at most",
                feature=key,
                value=float(feature.shape[-1]),
                threshold=float(most),
            )


def _check_chunk(source: CheckSource, results: Results, needs: PolicyNeeds) -> None:
    lengths = source.lengths
    if needs.chunk <= 1 or not len(lengths) or not lengths.sum():
        return
    results.apply("policy.chunk")
    share = padded_share(lengths.tolist(), needs.chunk)
    short = np.flatnonzero(lengths < needs.chunk)
    results.facts["padding"] = {"chunk": needs.chunk, "share": round(share, 4), "short_episodes": len(short)}
    many = len(short) > _SHORT_SHARE * len(lengths)
    results.add(
        "policy.chunk",
        f"{share:.1%} of the action steps in chunks of {needs.chunk} lie beyond the end of their episode and count as "
        f"padding; {len(short)} of {len(lengths)} episodes are shorter than one chunk",
        claim=Claim.RISK if many else Claim.FACT,
        episodes=source.episodes[short].tolist() if many else (),
        value=round(share, 4),
        threshold=_SHORT_SHARE,
        impact="episodes shorter than the chunk are padded and masked, not skipped",
    )


def padded_share(lengths: list[int], chunk: int) -> float:
    """Share of the action steps of all samples that lie beyond the end of their episode, in [0, 1]."""
    padded = sum(
        min(length, chunk) * (chunk - 1) - min(length, chunk) * (min(length, chunk) - 1) // 2 for length in lengths
    )
    return padded / max(sum(lengths) * chunk, 1)


def _check_rate(source: CheckSource, results: Results, needs: PolicyNeeds) -> None:
    if not needs.fps:
        return
    results.apply("policy.fps")
    if abs(source.fps / needs.fps - 1) > 0.02:
        results.add(
            "policy.fps",
            f"{needs.name} was trained at {needs.fps:g} Hz, the dataset has {source.fps} Hz",
            value=float(source.fps),
            threshold=float(needs.fps),
            unit="Hz",
        )


def _check_resolution(source: CheckSource, results: Results, needs: PolicyNeeds) -> None:
    if needs.resolution is None or not source.camera_keys:
        return
    results.apply("policy.resolution")
    height, width = needs.resolution
    for key in source.camera_keys:
        _, h, w = source.features[key].chw
        if (h, w) != (height, width):
            word = "scaled down" if h * w > height * width else "scaled up"
            results.add(
                "policy.resolution",
                f"`{key}` is {w} x {h}; {needs.name} sees {width} x {height}, so it is {word}",
                feature=key,
                value=f"{w}x{h}",
                threshold=f"{width}x{height}",
            )


def _check_words(source: CheckSource, results: Results, needs: PolicyNeeds) -> None:
    if not needs.reads_instructions:
        return
    if not needs.token_limit:
        results.skip("task.long", "the policy's tokenizer is not on this machine")
        return
    results.apply("task.long")
    for task, tokens in needs.long_tasks.items():
        episodes = [e for e, text in zip(source.episodes.tolist(), source.first_tasks, strict=True) if text == task]
        results.add(
            "task.long",
            f"`{task:.60}` has {tokens} tokens; {needs.name} reads {needs.token_limit} and cuts the rest",
            episodes=episodes,
            value=float(tokens),
            threshold=float(needs.token_limit),
            unit="tokens",
        )
