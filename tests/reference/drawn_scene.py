"""A tabletop that is drawn: an arm of two links picks up a cube, seen by two cameras.

Photograph-like enough for the picture checks (texture, shadows, sensor noise), and small: tests and screenshots use it.
`Faults` are the picture faults of spec/dataset_quality.md 12, one switch each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

from mimetic.testing.datasets import TinyDataset, build_dataset

VIEWS = {"front": 0, "side": 1, "wrist": 2, "room": 3}
JOINTS = ("shoulder_pan.pos", "shoulder_lift.pos", "elbow_flex.pos", "wrist_flex.pos", "wrist_roll.pos", "gripper.pos")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong; nothing by default.

    Args:
        black: episodes in which the first camera shows nothing.
        white: the same, all white.
        covered: the same, dark and dim.
        blurred: the same, out of focus.
        exposure: gain of the first camera by episode.
        tint: levels added to red and taken from blue in the first camera by episode.
        moved: (right, down) in pixels of the first camera by episode.
        turned: rotation of the first camera's picture by episode [degrees].
        swapped: episodes in which the first two cameras are exchanged.
        frozen: (first, last) frame that shows the first one's picture, by episode, first camera.
        real_rate: pictures a second that the first camera really delivers; 0 for all of them.
        copied: episode -> episode whose pictures and state it repeats.
    """

    black: tuple = ()
    white: tuple = ()
    covered: tuple = ()
    blurred: tuple = ()
    exposure: dict = field(default_factory=dict)
    tint: dict = field(default_factory=dict)
    moved: dict = field(default_factory=dict)
    turned: dict = field(default_factory=dict)
    swapped: tuple = ()
    frozen: dict = field(default_factory=dict)
    real_rate: float = 0.0
    copied: dict = field(default_factory=dict)


def joint_paths(episode, length, seed=0):
    """(length, 6) joint angles in degrees: down to the cube, close, up, aside; another place in every episode."""
    rng = np.random.default_rng([seed, episode])
    pan, depth = rng.uniform(-28, 28), rng.uniform(-8, 8)
    start = np.array([0, -35, 70, 20, 0, 60.0]) + rng.normal(0, 2.0, 6)
    above = np.array([pan, -5 + depth, 60 - depth, 30, rng.uniform(-30, 30), 60])
    grasp = above + [0, 28, 12, -6, 0, 0]
    closed = grasp + [0, 0, 0, 0, 0, -48]
    lifted = closed + [0, -32, -10, 8, 0, 0]
    aside = lifted + [-1.4 * pan + 20, 6, 4, 0, 10, 0]
    points = [start, above, grasp, closed, lifted, aside]
    ends = np.cumsum([0, 0.26, 0.18, 0.1, 0.2, 0.26]) + np.append(0, rng.normal(0, 0.015, 5))
    path, time = np.empty((length, 6)), np.linspace(0, 1, length)
    for joint in range(6):
        path[:, joint] = _min_jerk(time, ends / ends[-1], [point[joint] for point in points])
    return path


def _min_jerk(time, ends, values):
    out = np.full(time.shape, values[-1], dtype=float)
    for first, last, one, two in zip(ends, ends[1:], values, values[1:], strict=False):
        inside = (time >= first) & (time <= last)
        part = (time[inside] - first) / max(last - first, 1e-9)
        out[inside] = one + (two - one) * (10 * part**3 - 15 * part**4 + 6 * part**5)
    return out


@lru_cache(maxsize=8)
def _wall(camera, width, height):
    """A room without the arm, with a margin of an eighth around: wall, table with grain, a poster, a box."""
    rng = np.random.default_rng(100 + camera)
    w, h = width * 5 // 4, height * 5 // 4
    x, y = np.meshgrid(np.linspace(0, 1, w), np.linspace(0, 1, h))
    wall = np.stack([205 - 25 * y, 208 - 22 * y, 204 - 18 * x], axis=-1)
    table = np.stack([150 + 34 * x, 112 + 26 * x, 78 + 18 * x], axis=-1)
    grain = _texture(rng, h, w, ((1, 5.0), (3, 8.0)))
    table = table + (grain * [1.0, 0.85, 0.6][:1][0])[..., None] * 0.9
    wall = wall + _texture(rng, h, w, ((2, 2.0), (9, 5.0)))[..., None]
    edge = 0.52 + (0.06 * x if camera else -0.03 * x)
    picture = np.where((y > edge)[..., None], table, wall)
    image = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    if camera == 0:
        _box(draw, w, h, (0.12, 0.14, 0.30, 0.40), (52, 88, 120))
        for line in range(4):
            _box(draw, w, h, (0.14, 0.18 + 0.05 * line, 0.26, 0.20 + 0.05 * line), (226, 226, 216))
        _box(draw, w, h, (0.72, 0.30, 0.90, 0.56), (92, 104, 84))
        _box(draw, w, h, (0.74, 0.33, 0.88, 0.38), (180, 176, 150))
        draw.ellipse([0.16 * w, 0.78 * h, 0.30 * w, 0.90 * h], fill=(214, 210, 200), outline=(150, 140, 130))
    else:
        _box(draw, w, h, (0.55, 0.10, 0.88, 0.44), (176, 200, 214))
        _box(draw, w, h, (0.55, 0.26, 0.88, 0.275), (96, 96, 96))
        _box(draw, w, h, (0.71, 0.10, 0.72, 0.44), (96, 96, 96))
        _box(draw, w, h, (0.05, 0.22, 0.20, 0.60), (110, 62, 58))
        _box(draw, w, h, (0.08, 0.28, 0.17, 0.33), (220, 190, 120))
        draw.ellipse([0.70 * w, 0.74 * h, 0.82 * w, 0.88 * h], fill=(60, 74, 92), outline=(30, 40, 50))
    return np.asarray(image)


def _box(draw, w, h, box, colour):
    draw.rectangle([box[0] * w, box[1] * h, box[2] * w, box[3] * h], fill=colour)


def _texture(rng, h, w, scales):
    total = np.zeros((h, w))
    for size, strength in scales:
        coarse = rng.normal(size=(h // size + 2, w // size + 2)).astype(np.float32)
        image = Image.fromarray(coarse).resize((w, h), Image.Resampling.BICUBIC)
        total += strength * np.asarray(image) * 0.5
    return total


def draw_view(camera, joints, cube, size, offset=(0, 0), fine=1):
    """One picture (H, W, 3) uint8.

    Args:
        camera: 0 in front, 1 from the side, 2 on the wrist, 3 a room without the robot.
        joints: (6,) degrees.
        cube: (x, y) in 0..1, where the cube is.
        size: (height, width).
        offset: (right, down) by which the picture is shifted [px].
        fine: draw at so many times the size and shrink, for smooth edges.
    """
    height, width = size
    if camera == 3:
        return np.ascontiguousarray(_wall(1, width, height)[:height, :width])
    if camera == 2:
        wall = _wall(0, width, height)
        right = 2.1 * joints[0] * width / 160 % wall.shape[1]
        down = 1.7 * (joints[1] + joints[2]) * width / 160 % wall.shape[0]
        tiled = Image.fromarray(np.tile(wall, (2, 2, 1)))
        moved = tiled.transform(
            (width, height), Image.Transform.AFFINE, (1, 0, right, 0, 1, down), Image.Resampling.BILINEAR
        )
        view = np.array(moved)
        view[-height // 6 :, width // 2 - width // 8 : width // 2 + width // 8] = (70, 74, 82)
        return view
    wall = _wall(camera, width * fine, height * fine)
    top = height * fine // 8 - round(offset[1] * fine)
    left = width * fine // 8 - round(offset[0] * fine)
    image = Image.fromarray(wall[top : top + height * fine, left : left + width * fine])
    draw = ImageDraw.Draw(image)
    unit = height * fine / 100
    x0, y0 = (50 * width / height + offset[0] * 100 / height, 84 + offset[1] * 100 / height)
    pan = np.deg2rad(joints[0]) * (1 if camera == 0 else -0.5)
    lift, bend, wrist = np.deg2rad(joints[1]), np.deg2rad(joints[2]), np.deg2rad(joints[3])
    cx, cy = x0 + cube[0] * (1 if camera == 0 else -0.7), y0 - cube[1]
    _shadow(draw, unit, (cx, cy + 4.5), 8)
    _shadow(draw, unit, (x0, y0 + 3), 16)
    draw.rectangle(_around(unit, (cx, cy), 4.2), fill=(190, 48, 44), outline=(120, 26, 26))
    draw.rectangle(_around(unit, (cx + 1.2, cy - 1.4), 1.2), fill=(226, 96, 88))
    base = (x0, y0)
    elbow = (x0 + 30 * np.sin(pan + lift * 0.4), y0 - 34 * np.cos(lift * 0.9))
    angle = lift + bend
    hand = (elbow[0] + 30 * np.sin(pan + 0.3 * angle), elbow[1] - 26 * np.cos(angle))
    _link(draw, unit, base, elbow, 7.0, (232, 134, 44))
    _link(draw, unit, elbow, hand, 5.4, (240, 158, 62))
    for place, radius in ((base, 6.4), (elbow, 5.0), (hand, 3.8)):
        draw.ellipse(_around(unit, place, radius), fill=(58, 62, 70), outline=(30, 32, 36))
        draw.ellipse(_around(unit, place, radius * 0.4), fill=(150, 156, 166))
    opening = 1.5 + joints[5] / 14
    down = wrist + angle + np.deg2rad(90)
    for side in (-1, 1):
        tip = (hand[0] + side * opening + 5 * np.sin(pan), hand[1] + 9 * abs(np.sin(down)) + 2)
        _link(draw, unit, (hand[0] + side * opening * 0.7, hand[1] + 1), tip, 1.7, (70, 74, 82))
    if fine > 1:
        image = image.resize((width, height), Image.Resampling.BOX)
    return np.asarray(image)


def _around(unit, place, radius):
    return [
        (place[0] - radius) * unit,
        (place[1] - radius) * unit,
        (place[0] + radius) * unit,
        (place[1] + radius) * unit,
    ]


def _shadow(draw, unit, place, radius):
    x, y = place
    box = [(x - radius) * unit, (y - radius / 3) * unit, (x + radius) * unit, (y + radius / 3) * unit]
    draw.ellipse(box, fill=(104, 78, 56))


def _link(draw, unit, one, two, thick, colour):
    line = [one[0] * unit, one[1] * unit, two[0] * unit, two[1] * unit]
    draw.line(line, fill=tuple(int(part * 0.62) for part in colour), width=max(1, round(thick * unit)))
    draw.line(line, fill=colour, width=max(1, round(thick * 0.68 * unit)))


def build_scene(
    root,
    *,
    episodes=12,
    length=30,
    fps=10,
    size=(120, 160),
    faults=None,
    cameras=("front", "side"),
    noise=2.0,
    fine=1,
    tasks=("pick up the red cube",),
    episodes_per_file=4,
    dtype="video",
    seed=0,
    lengths=None,
    camera_stats=True,
):
    """Write the dataset and return its folder."""
    faults = faults or Faults()
    lengths = list(lengths or [length] * episodes)
    source = [faults.copied.get(episode, episode) for episode in range(len(lengths))]
    paths = [joint_paths(source[episode], n, seed) for episode, n in enumerate(lengths)]
    state = np.concatenate(paths).astype(np.float32)
    rng = np.random.default_rng(seed + 1)
    state = state + rng.normal(0, 0.05, state.shape).astype(np.float32)
    for copy, original in faults.copied.items():
        ends = np.cumsum([0, *lengths])
        state[ends[copy] : ends[copy + 1]] = state[ends[original] : ends[original + 1]]
    action = np.concatenate([np.concatenate([path[2:], path[-1:], path[-1:]]) for path in paths]).astype(np.float32)
    calls = [0]
    total = sum(lengths)

    def picture(episode, frame, shape):
        number = calls[0] // total % len(cameras) if dtype == "video" else 0
        calls[0] += 1
        return _fault_picture(faults, source, paths, cameras, number, episode, frame, shape, fps, noise, fine, seed)

    spec = TinyDataset(
        lengths=lengths,
        fps=fps,
        cameras=dict.fromkeys(cameras, size),
        camera_dtype=dtype,
        columns={"observation.state": state, "action": action},
        state_dim=6,
        action_dim=6,
        tasks=tasks,
        episodes_per_file=episodes_per_file,
        picture=picture,
        camera_stats=camera_stats,
        gop=2,
    )
    build_dataset(root, spec)
    _name_joints(root)
    return root


def _fault_picture(faults, source, paths, names, number, episode, frame, shape, fps, noise, fine, seed):
    camera = VIEWS[names[number]]
    if episode in faults.swapped and number < 2:
        camera = 1 - camera
    if number == 0 and episode in faults.frozen:
        first, last = faults.frozen[episode]
        frame = first if first <= frame <= last else frame
    if number == 0 and faults.real_rate:
        frame = min(frame, round(np.floor(frame * faults.real_rate / fps + 1e-9) * fps / faults.real_rate))
    path = paths[episode]
    rng = np.random.default_rng([seed, source[episode], frame, camera])
    place = np.random.default_rng([seed, source[episode]])
    cube = (path[min(len(path) - 1, len(path) // 2), 0] * 0.6, 8 + place.uniform(-3, 3))
    if frame > 0.55 * len(path):
        cube = (path[frame, 0] * 0.6, 8 + 22 * min(1.0, (frame / len(path) - 0.55) / 0.2))
    offset = faults.moved.get(episode, (0, 0)) if number == 0 else (0, 0)
    view = draw_view(camera, path[frame], cube, shape, offset, fine).astype(np.float32)
    if number == 0 and episode in faults.turned:
        image = Image.fromarray(view.astype(np.uint8))
        view = np.asarray(image.rotate(faults.turned[episode], Image.Resampling.BICUBIC), dtype=np.float32)
    if number == 0:
        view = _spoil(view, faults, episode)
    if noise:
        view = view + noise * _noise(view.shape)[int(rng.integers(0, 16))]
    return np.clip(np.rint(view), 0, 255).astype(np.uint8)


@lru_cache(maxsize=4)
def _noise(shape):
    """Sixteen pictures of sensor noise; drawing one for each frame would take longer than all the rest."""
    return np.random.default_rng(7).normal(size=(16, *shape)).astype(np.float32)


def _spoil(view, faults, episode):
    if episode in faults.black:
        return view * 0.0 + 3
    if episode in faults.white:
        return view * 0.0 + 252
    if episode in faults.covered:
        return view * 0.0 + np.linspace(28, 40, view.shape[1])[None, :, None]
    if episode in faults.blurred:
        image = Image.fromarray(view.astype(np.uint8))
        small = image.resize((image.width // 6, image.height // 6), Image.Resampling.BOX)
        return np.asarray(small.resize(image.size, Image.Resampling.BICUBIC), dtype=np.float32)
    view = view * faults.exposure.get(episode, 1.0)
    if episode in faults.tint:
        view = view + np.array([faults.tint[episode], 0, -faults.tint[episode]])
    return view


def _name_joints(root):
    import json

    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    for key in ("observation.state", "action"):
        info["features"][key]["names"] = list(JOINTS)
    path.write_text(json.dumps(info, indent=4))
