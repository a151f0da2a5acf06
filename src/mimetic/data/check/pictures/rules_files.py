"""Files: damaged ones, missing frames, sizes that differ, and how the pictures are compressed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mimetic.data.check.finding import Claim, Finding
from mimetic.data.check.pictures.camera import Camera, counted, delete_command, ranges
from mimetic.data.check.pictures.sample import Damage, EpisodePictures

RULES = ("image.damaged", "meta.video_span", "data.image_shape", "image.codec")
_MISSING = "does not exist"
_TOLERANCE_S = 1e-4
_CRASH = "training stops, or skips the frame, as soon as it reaches it"


def check_files(camera: Camera) -> list[Finding]:
    """Findings about the files of one camera."""
    return [*_damage(camera), *_missing_frames(camera), *_sizes(camera), *_streams(camera), *_codec(camera)]


def _damage(camera: Camera) -> list[Finding]:
    absent = [item for item in camera.episodes if item.damage and _MISSING in item.damage[0].reason]
    damaged = [item for item in camera.episodes if item.damage and item not in absent]
    findings = []
    if absent:
        findings.append(
            Finding(
                id="image.damaged",
                claim=Claim.NOT_CHECKED,
                message=f"the pictures of {camera.name} in {counted(len(absent))} ({_numbers(absent)}) were not looked "
                "at: their video file is missing",
                episodes=tuple(item.episode for item in absent),
                feature=camera.key,
            )
        )
    if damaged:
        reasons = Counter(damage.reason for item in damaged for damage in item.damage)
        frames = sum(damage.last - damage.frame + 1 for item in damaged for damage in item.damage)
        episodes = tuple(item.episode for item in damaged)
        findings.append(
            Finding(
                id="image.damaged",
                claim=Claim.DEFECT,
                message=f"{counted(frames, 'picture')} of {camera.name} in {counted(len(episodes))} "
                f"({ranges(episodes)}) cannot be read: {reasons.most_common(1)[0][0]}",
                impact=_CRASH,
                repair=delete_command(camera.root, episodes),
                episodes=episodes,
                spans=tuple((item.episode, *_span(damage, item)) for item in damaged for damage in item.damage),
                feature=camera.key,
                value=float(frames),
                threshold=0.0,
                unit="frames",
            )
        )
    return findings


def _span(damage: Damage, item: EpisodePictures) -> tuple[int, int]:
    return damage.frame, min(damage.last, max(item.length - 1, damage.frame))


def _missing_frames(camera: Camera) -> list[Finding]:
    short = [item for item in camera.episodes if item.n_there < item.length and not (item.damage and not item.n_there)]
    if not short:
        return []
    episodes = tuple(item.episode for item in short)
    worst = max(short, key=lambda item: item.length - item.n_there)
    missing = worst.length - worst.n_there
    where = "video" if camera.is_video else "data file"
    return [
        Finding(
            id="meta.video_span",
            claim=Claim.DEFECT,
            message=f"the {where} of {camera.name} ends before {counted(len(short))} ({ranges(episodes)}): in episode "
            f"{worst.episode} the last {missing} of {worst.length} frames ({missing / camera.fps:.2f} s) are not there",
            impact="training stops at the first frame that is missing",
            repair=delete_command(camera.root, episodes),
            episodes=episodes,
            spans=tuple((item.episode, item.n_there, item.length - 1) for item in short),
            feature=camera.key,
            value=missing / camera.fps,
            threshold=0.0,
            unit="s",
        )
    ]


def _sizes(camera: Camera) -> list[Finding]:
    wrong: dict[tuple[int, int], set[int]] = {}
    spans = []
    for item in camera.episodes:
        if item.size not in ((0, 0), camera.declared):
            wrong.setdefault(item.size, set()).add(item.episode)
        for frame, size in item.other_sizes:
            wrong.setdefault(size, set()).add(item.episode)
            spans.append((item.episode, frame, frame))
    if not wrong:
        return []
    episodes = tuple(sorted({episode for numbers in wrong.values() for episode in numbers}))
    sizes = ", ".join(
        f"{width}x{height} in {counted(len(numbers))}" for (height, width), numbers in sorted(wrong.items())
    )
    everywhere = len(wrong) == 1 and len(episodes) == len(camera.episodes)
    return [
        Finding(
            id="data.image_shape",
            claim=Claim.DEFECT,
            message=f"pictures of {camera.name} are {sizes}; meta/info.json declares "
            f"{camera.declared[1]}x{camera.declared[0]}",
            impact="training stops at the first picture of another size",
            repair="" if everywhere else delete_command(camera.root, episodes),
            episodes=() if everywhere else episodes,
            spans=tuple(spans),
            feature=camera.key,
            value=sizes,
            threshold=f"{camera.declared[1]}x{camera.declared[0]}",
            unit="px",
        )
    ]


def _streams(camera: Camera) -> list[Finding]:
    """Rate and compression of the video files: the rate must be the dataset's, the rest at least the same."""
    findings = []
    files = [file for file in camera.files if not file.error]
    tolerance = _TOLERANCE_S + 1.0 / 90_000
    off = [file for file in files if file.off_grid_s > tolerance]
    if off:
        worst = max(off, key=lambda file: file.off_grid_s)
        concerned = {file.path for file in off}
        episodes = tuple(episode for episode, name in camera.file_of.items() if name in concerned)
        findings.append(
            Finding(
                id="data.image_shape",
                claim=Claim.DEFECT,
                message=f"{counted(len(off), 'video file')} of {camera.name} do not show a frame every "
                f"1/{camera.fps:g} s: in `{worst.path}`, at {worst.fps:.2f} Hz, frames are up to "
                f"{worst.off_grid_s * 1000:.1f} ms away from where the dataset's rate puts them",
                impact="pictures and robot data drift apart, or training stops",
                episodes=() if len(episodes) == len(camera.episodes) else episodes,
                feature=camera.key,
                value=worst.fps,
                threshold=float(camera.fps),
                unit="Hz",
            )
        )
    kinds = Counter((file.codec, file.pix_fmt) for file in files)
    if len(kinds) > 1:
        usual = kinds.most_common(1)[0][0]
        others = {file.path for file in files if (file.codec, file.pix_fmt) != usual}
        names = ", ".join(f"{codec} {pix_fmt} in {count}" for (codec, pix_fmt), count in kinds.most_common())
        findings.append(
            Finding(
                id="data.image_shape",
                claim=Claim.RISK,
                message=f"the video files of {camera.name} are compressed in different ways: {names}",
                impact="colours and sharpness may differ between recordings; speed does",
                episodes=tuple(episode for episode, name in camera.file_of.items() if name in others),
                feature=camera.key,
                value=float(len(kinds)),
                threshold=1.0,
            )
        )
    return findings


def _codec(camera: Camera) -> list[Finding]:
    files = [file for file in camera.files if not file.error]
    if not files:
        return []
    usual = Counter((file.codec, file.pix_fmt, file.width, file.height) for file in files).most_common(1)[0][0]
    gap, bits = max(file.gap for file in files), _mean([file.bits for file in files])
    return [
        Finding(
            id="image.codec",
            claim=Claim.FACT,
            message=f"{camera.name}: {usual[0]} {usual[1]}, {usual[2]}x{usual[3]} pixels, a keyframe at least every "
            f"{counted(gap, 'frame')}, {bits:.3f} bits a pixel"
            + ("; to read one frame at random, up to that many are decoded" if gap > 30 else ""),
            feature=camera.key,
            value=float(gap),
            unit="frames",
        )
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def _numbers(items: Sequence[EpisodePictures]) -> str:
    return ranges([item.episode for item in items])
