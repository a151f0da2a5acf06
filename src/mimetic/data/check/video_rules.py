"""Rules on video files that need no decoding: they exist, are long enough, and hold each episode once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mimetic.data.check.finding import Claim
from mimetic.data.check.ledger import Ledger
from mimetic.data.check.results import Results
from mimetic.data.check.source import CheckSource
from mimetic.data.episodes import listed
from mimetic.data.video.index import build_index, open_container
from mimetic.errors import DatasetError, VideoError

_RULES = ("meta.video_file", "meta.video_span", "meta.video_order")
_SPAN_FRAMES = 1.5
_GRID_S = 1e-4


@dataclass(frozen=True)
class VideoFacts:
    """What the header of a video file says.

    Args:
        frames: frames in the file.
        width: of a picture [px].
        height: of a picture [px].
        codec: canonical name.
        pix_fmt: pixel format.
        rate: frames a second.
        keyframe_distance: largest distance of key frames; random access costs half of it on average.
    """

    frames: int
    width: int
    height: int
    codec: str
    pix_fmt: str
    rate: float
    keyframe_distance: int


def check_videos(source: CheckSource, results: Results, *, with_headers: bool) -> None:
    """`meta.video_file`, `meta.video_span`, `meta.video_order` and, with headers, `data.image_shape`."""
    ledger = source.ledger
    if source.info is None or not source.video_keys:
        return
    if ledger is None:
        results.skip((*_RULES, "data.image_shape"), "the table of episodes cannot be read")
        return
    results.apply(*_RULES)
    if with_headers:
        results.apply("data.image_shape")
    for key in source.video_keys:
        if key in ledger.videos:
            _check_spans(source, ledger, key, results)
            _check_order(source, ledger, key, results)
            _check_files(source, ledger, key, results, with_headers=with_headers)
    _check_orphan_videos(source, ledger, results)


def _check_spans(source: CheckSource, ledger: Ledger, key: str, results: Results) -> None:
    spans, fps = ledger.videos[key], source.fps
    bounds = [source.bounds(int(episode)) for episode in ledger.index]
    # The rows know better than a stale table, which has its own rule.
    length = [stated if b is None else b[1] - b[0] for b, stated in zip(bounds, ledger.length, strict=True)]
    extra = (spans.to_s - spans.from_s) * fps - np.asarray(length)
    senseless = np.flatnonzero((spans.from_s < -_GRID_S) | (np.isfinite(spans.from_s) & ~np.isfinite(spans.to_s)))
    if len(senseless):
        row = senseless[0]
        results.add(
            "meta.video_span",
            f"`{key}`: the declared video of episodes {listed(ledger.index[senseless])} has no place in a file "
            f"(episode {ledger.index[row]}: from {spans.from_s[row]:g} s to {spans.to_s[row]:g} s)",
            episodes=ledger.index[senseless].tolist(),
            feature=key,
        )
    known = np.isfinite(extra)
    known[senseless] = False
    for claim, wrong, word in (
        (Claim.DEFECT, known & (extra < -_SPAN_FRAMES), "shorter"),
        (Claim.RISK, known & (extra > _SPAN_FRAMES), "longer"),
    ):
        rows = np.flatnonzero(wrong)
        if len(rows):
            worst = rows[np.argmax(np.abs(extra[rows]))]
            results.add(
                "meta.video_span",
                f"`{key}`: the declared video of episodes {listed(ledger.index[rows])} is {word} than the rows "
                f"(episode {ledger.index[worst]}: by {abs(extra[worst]):.1f} frames)",
                claim=claim,
                episodes=ledger.index[rows].tolist(),
                feature=key,
                value=round(float(extra[worst]) / fps, 4),
                threshold=round(_SPAN_FRAMES / fps, 4),
                unit="s",
                impact=None
                if claim is Claim.DEFECT
                else "frames after the episode, such as the reset, are in its span",
            )


def _check_order(source: CheckSource, ledger: Ledger, key: str, results: Results) -> None:
    spans, fps = ledger.videos[key], source.fps
    order = np.lexsort((ledger.index, spans.file, spans.chunk))
    same = (np.diff(spans.file[order]) == 0) & (np.diff(spans.chunk[order]) == 0)
    overlap = spans.to_s[order][:-1] - spans.from_s[order][1:]
    rows = np.flatnonzero(same & (overlap > 0.5 / fps))
    if len(rows):
        first, second = order[rows[0]], order[rows[0] + 1]
        results.add(
            "meta.video_order",
            f"`{key}`: spans of episodes {listed(ledger.index[order[rows + 1]])} overlap with the episode before "
            f"(episode {ledger.index[second]} begins at {spans.from_s[second]:.3f} s, episode {ledger.index[first]} "
            f"ends at {spans.to_s[first]:.3f} s)",
            episodes=ledger.index[order[rows + 1]].tolist(),
            feature=key,
            value=round(float(overlap[rows[0]]), 4),
            threshold=0.0,
            unit="s",
        )
        return
    start = spans.from_s
    off = np.abs(start - np.round(start * fps) / fps)
    wrong = np.flatnonzero(np.isfinite(off) & (off > _GRID_S))
    if len(wrong):
        worst = wrong[np.argmax(off[wrong])]
        is_bad = off[worst] > 0.25 / fps
        results.add(
            "meta.video_order",
            f"`{key}`: starts of episodes {listed(ledger.index[wrong])} are off the frame grid by up to "
            f"{off[worst] * 1000:.2f} ms",
            claim=Claim.DEFECT if is_bad else Claim.RISK,
            episodes=ledger.index[wrong].tolist(),
            feature=key,
            value=float(off[worst]),
            threshold=_GRID_S,
            unit="s",
            impact=None if is_bad else "loaders with a tight tolerance refuse these episodes",
        )


def _check_files(source: CheckSource, ledger: Ledger, key: str, results: Results, *, with_headers: bool) -> None:
    by_file: dict[Path, list[int]] = {}
    outside: list[int] = []
    for episode in ledger.index.tolist():
        footage = source.footage(key, episode)
        if footage is None:
            outside.append(episode)
        else:
            by_file.setdefault(footage.path, []).append(episode)
    if outside:
        results.add(
            "meta.video_file",
            f"`{key}`: the table of episodes names no usable video file for episodes {listed(outside)}",
            episodes=outside,
            feature=key,
        )
    facts: dict[Path, VideoFacts] = {}
    for path, episodes in by_file.items():
        name = source.relative(path)
        if not path.is_file() or path.stat().st_size == 0:
            what = "is empty" if path.exists() else "is missing"
            results.add("meta.video_file", f"`{name}` {what}", episodes=episodes, feature=key)
        elif with_headers:
            try:
                facts[path] = video_facts(path)
            except VideoError as error:
                results.add(
                    "meta.video_file", f"`{name}` cannot be read: {error.message}", episodes=episodes, feature=key
                )
                continue
            _check_ends(source, key, path, episodes, facts[path].frames, results)
    _check_shapes(source, key, facts, by_file, results)


def video_facts(path: Path) -> VideoFacts:
    """Read the header of a video file; walks through its packets where the header does not say enough.

    Raises:
        VideoError: the file is damaged or holds no video.
    """
    container, stream = open_container(path)
    try:
        context = stream.codec_context
        rate = stream.average_rate or stream.base_rate
        known = (int(context.width), int(context.height), str(context.codec.canonical_name), str(context.pix_fmt))
        index = build_index(path, container, stream)
    finally:
        container.close()
    gaps = np.diff(np.append(index.keyframes, len(index)))
    distance = int(gaps.max()) if len(gaps) else 0
    return VideoFacts(len(index), *known, float(rate) if rate else 0.0, distance)


def _check_ends(
    source: CheckSource, key: str, path: Path, episodes: Sequence[int], frames: int, results: Results
) -> None:
    short: list[tuple[int, int]] = []
    for episode in episodes:
        footage = source.footage(key, episode)
        assert footage is not None
        length = footage.length
        bounds = source.bounds(episode)
        if bounds is not None:
            length = bounds[1] - bounds[0]
        missing = footage.first + length - frames
        if missing > 0:
            short.append((episode, min(missing, length)))
    if short:
        episode, missing = short[0]
        results.add(
            "meta.video_file",
            f"`{source.relative(path)}` of `{key}` ends before its episodes do: episode {episode} lacks {missing} "
            f"frames ({missing / source.fps:.2f} s)" + (f", {len(short) - 1} more lack frames" if short[1:] else ""),
            episodes=[item[0] for item in short],
            spans=[(number, max(0, source.length(number) - lost), source.length(number) - 1) for number, lost in short],
            feature=key,
            value=round(missing / source.fps, 4),
            threshold=round(0.5 / source.fps, 4),
            unit="s",
        )


def _check_shapes(
    source: CheckSource,
    key: str,
    facts: dict[Path, VideoFacts],
    by_file: dict[Path, list[int]],
    results: Results,
) -> None:
    if not facts:
        return
    _, height, width = source.features[key].chw
    wrong = [path for path, fact in facts.items() if (fact.height, fact.width) != (height, width)]
    if wrong:
        fact = facts[wrong[0]]
        results.add(
            "data.image_shape",
            f"`{key}` is declared {width} x {height}, `{source.relative(wrong[0])}` has {fact.width} x {fact.height}"
            + (f", {len(wrong) - 1} more files differ" if wrong[1:] else ""),
            episodes=[episode for path in wrong for episode in by_file[path]],
            feature=key,
            value=f"{fact.width}x{fact.height}",
            threshold=f"{width}x{height}",
        )
    kinds = {(fact.codec, fact.pix_fmt) for fact in facts.values()}
    if len(kinds) > 1:
        results.add(
            "data.image_shape",
            f"`{key}` is coded in several ways: {', '.join(sorted(f'{codec} {form}' for codec, form in kinds))}",
            claim=Claim.RISK,
            feature=key,
            impact="colours may differ between episodes",
        )
    off = [path for path, fact in facts.items() if fact.rate and abs(fact.rate / source.fps - 1) > 0.02]
    if off:
        results.add(
            "data.image_shape",
            f"`{source.relative(off[0])}` runs at {facts[off[0]].rate:g} frames a second, the dataset at {source.fps}"
            + (f", {len(off) - 1} more files, too" if off[1:] else ""),
            episodes=[episode for path in off for episode in by_file[path]],
            feature=key,
            value=facts[off[0]].rate,
            threshold=float(source.fps),
            unit="Hz",
        )
    any_fact = next(iter(facts.values()))
    cameras = results.facts.setdefault("cameras", {})
    cameras[key] = {
        "width": any_fact.width,
        "height": any_fact.height,
        "codec": any_fact.codec,
        "pix_fmt": any_fact.pix_fmt,
        "files": len(facts),
        "keyframe_distance": max(fact.keyframe_distance for fact in facts.values()),
        "bits_per_pixel": round(_bits_per_pixel(facts), 4),
    }


def _bits_per_pixel(facts: dict[Path, VideoFacts]) -> float:
    bits = sum(path.stat().st_size * 8 for path in facts)
    pixels = sum(fact.frames * fact.width * fact.height for fact in facts.values())
    return bits / max(pixels, 1)


def _check_orphan_videos(source: CheckSource, ledger: Ledger, results: Results) -> None:
    if source.layout is None or source.layout.legacy:
        return
    used: set[Path] = set()
    for key in source.video_keys:
        if key not in ledger.videos:
            continue
        spans = ledger.videos[key]
        for chunk, file in {(int(c), int(f)) for c, f in zip(spans.chunk, spans.file, strict=True)}:
            if chunk >= 0 and file >= 0:
                try:
                    used.add(source.layout.video_file(key, chunk, file))
                except DatasetError:
                    continue
    found = sorted((source.root / "videos").glob("**/*.mp4"))
    stray = [path for path in found if path not in used]
    if stray:
        results.add(
            "meta.orphans",
            f"{len(stray)} video file{'' if len(stray) == 1 else 's'} that no episode names, such as "
            f"`{source.relative(stray[0])}`",
            value=float(len(stray)),
            unit="files",
        )
