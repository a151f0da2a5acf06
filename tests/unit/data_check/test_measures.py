"""Pieces of the check against what they mean: idle, gripper, scores, duplicates, clusters, channels."""

import numpy as np
import pytest

from mimetic.data.check import gripper, idle, variety
from mimetic.data.check.channels import COUNTS, DEGREES, NORMALISED, RADIANS, infer_unit, load_channels
from mimetic.data.check.consistency import neighbour_residuals
from mimetic.data.check.finding import Claim
from mimetic.data.check.lag import lag_curve, position_correlation
from mimetic.data.check.motion import ABSOLUTE, DELTA, UNKNOWN
from mimetic.data.check.run import check_dataset
from mimetic.data.check.scores import rank_correlation, robust_z, tukey_limit
from mimetic.data.check.smoothness import chatter, dither, high_frequency_share, low_pass, path_length
from mimetic.data.check.source import open_source
from mimetic.data.check.state_rules import running_median
from mimetic.testing.datasets import build_dataset

FPS = 30


def ramp(frames, width=2):
    return np.linspace(0, 1, frames)[:, None] * np.ones(width)


# Idle


def wait_move_wait(head, move, tail):
    return np.concatenate([np.zeros((head, 2)), ramp(move), np.ones((tail, 2))])


@pytest.mark.parametrize(("head", "tail"), [(0, 0), (60, 0), (0, 75), (40, 50)])
def test_head_and_tail_are_the_frames_that_stand_still(head, tail):
    found = idle.idle_frames(wait_move_wait(head, 60, tail), 15, 0.02)
    # The motion must be seen before it counts: up to half of a tenth of the way.
    assert found.head == pytest.approx(head, abs=5)
    assert found.tail == pytest.approx(tail, abs=5)
    assert found.middle <= 1


def test_a_pause_in_between_is_neither_head_nor_tail():
    path = np.concatenate([ramp(60), np.ones((90, 2)), 1 + ramp(60)])
    found = idle.idle_frames(path, 15, 0.02)
    assert (found.head, found.tail) == pytest.approx((0, 0), abs=5)
    assert found.middle == pytest.approx(90 - 15, abs=9)  # and the slow part of both moves


def test_an_episode_that_never_moves_is_idle_from_its_start():
    assert idle.idle_frames(np.zeros((100, 2)), 15, 0.02).head == 100


def test_the_noise_floor_is_bounded_from_both_sides():
    assert idle.noise_floor([np.zeros(50)] * 4) == 0.02
    assert idle.noise_floor([np.full(50, 0.8)] * 4) == 0.10
    assert idle.noise_floor([np.full(50, 0.03)] * 4) == pytest.approx(0.06)


@pytest.mark.parametrize(("chunk", "expected"), [(10, 0.35), (30, 0.15)])
def test_zero_chunks_are_counted_like_the_plain_definition(chunk, expected):
    action = np.concatenate([np.zeros((40, 2)), ramp(40), np.ones((10, 2))])
    plain = [np.linalg.norm(np.ptp(action[t : t + chunk], axis=0)) < 0.02 for t in range(len(action) - chunk + 1)]
    assert idle.zero_chunk_share(action, chunk, 0.02) == pytest.approx(np.mean(plain))
    assert np.mean(plain) == pytest.approx(expected, abs=0.08)


def test_a_delta_of_zero_stays_and_a_constant_delta_moves():
    assert idle.zero_chunk_share(np.zeros((50, 2)), 10, 0.02, is_delta=True) == 1.0
    assert idle.zero_chunk_share(np.full((50, 2), 0.5), 10, 0.02, is_delta=True) == 0.0


def test_the_noop_filter_drops_long_runs_and_what_is_too_short_between_them():
    moving = ramp(100)
    assert idle.noop_frames(moving, np.ones(2), 15) == 0
    still = np.concatenate([moving, np.ones((30, 2)), 1 + moving])
    # 29 equal steps, the 10 before them, and the frame that ends the run is kept
    assert idle.noop_frames(still, np.ones(2), 15) == pytest.approx(40, abs=2)


# Gripper


def wave(rate_hz, seconds, fps=FPS):
    t = np.arange(round(seconds * fps)) / fps
    return 0.5 + 0.5 * np.sign(np.sin(2 * np.pi * rate_hz * t + 0.1))


def test_reversals_are_counted_at_any_rate_and_noise_is_not():
    assert gripper.peak_rate(gripper.reversals(wave(1.0, 4)), FPS) == 2
    assert gripper.peak_rate(gripper.reversals(wave(6.0, 4)), FPS) in (12, 13)
    quiet = 0.5 + np.random.default_rng(0).uniform(-0.009, 0.009, 300)
    assert len(gripper.reversals(quiet)) == 0


def test_short_small_swings_do_not_count_and_short_large_ones_do():
    def dip(size):
        signal = np.linspace(0, 1, 60)
        signal[30] -= size
        return gripper.reversals(signal)

    assert len(dip(0.09)) == 0
    assert len(dip(0.4)) == 2


def test_cycles_and_the_first_grasp():
    signal = np.concatenate([np.ones(20), np.zeros(20), np.ones(20), np.zeros(20)])
    states = gripper.states(signal)
    assert (gripper.closings(states), gripper.cycles(states), gripper.first_grasp(states)) == (2, 1, 20)
    bounce = signal.copy()
    bounce[30:32] = 1.0
    assert gripper.closings(gripper.states(bounce)) == 2
    assert gripper.first_grasp(gripper.states(np.ones(30))) == -1


# Scores


def test_robust_z_needs_eight_values_and_has_floors():
    values = np.asarray([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 3.0])
    assert np.isnan(robust_z(values[:7])).all()
    z = robust_z(values)
    assert z[-1] == pytest.approx(2.0 / (1.4826 * 0.05), rel=1e-6)
    equal = np.asarray([1.0] * 9 + [1.04])
    assert robust_z(equal)[-1] > 1e6
    assert robust_z(equal, relative_floor=0.1)[-1] == pytest.approx(0.4)
    assert robust_z(equal, absolute_floor=0.5)[-1] == pytest.approx(0.08)


def test_rank_correlation_is_spearmans():
    a = np.asarray([1.0, 2.0, 3.0, 4.0, 5.0])
    assert rank_correlation(a, a**3) == pytest.approx(1.0)
    assert rank_correlation(a, -a) == pytest.approx(-1.0)
    assert rank_correlation(np.asarray([1.0, 1.0, 2.0, 2.0]), np.asarray([1.0, 2.0, 3.0, 4.0])) == pytest.approx(
        0.8944, abs=1e-4
    )
    assert np.isnan(rank_correlation(np.ones(5), a))


def test_the_tukey_fence_has_a_floor():
    assert tukey_limit(np.asarray([0.0, 1.0, 2.0, 3.0, 4.0]), floor=0.0) == pytest.approx(6.0)
    assert tukey_limit(np.zeros(5), floor=0.05) == 0.05


# Smoothness


def test_measures_of_roughness_tell_smooth_from_rough():
    t = np.arange(300)[:, None] / FPS
    smooth = np.sin(2 * np.pi * 0.3 * t)
    rough = smooth + 0.1 * np.sin(2 * np.pi * 8 * t)
    assert high_frequency_share(smooth, FPS) < 0.05 < 0.5 < high_frequency_share(rough, FPS)
    assert chatter(rough) > 50 * chatter(smooth)
    assert np.abs(low_pass(rough, FPS) - smooth).max() < 0.05
    there_and_back = np.concatenate([np.linspace(0, 1, 50), np.linspace(1, 0, 50)])[:, None]
    path, direct = path_length(there_and_back)
    assert path == pytest.approx(direct)
    assert dither(0.1 * np.sin(2 * np.pi * 2 * t), FPS, 0.02) > 0.9
    assert dither(t, FPS, 0.02) == 0.0


def test_the_running_median_is_that_of_the_plain_definition():
    signal = np.random.default_rng(0).normal(size=(40, 3))
    padded = np.pad(signal, ((3, 3), (0, 0)), mode="edge")
    plain = np.stack([np.median(padded[t : t + 7], axis=0) for t in range(40)])
    assert np.array_equal(running_median(signal, 7), plain)


# Variety


def test_clusters_are_those_of_the_plain_definition():
    generator = np.random.default_rng(0)
    centres = generator.uniform(0, 1, (5, 4))
    points = np.concatenate([centre + generator.normal(0, 0.005, (7, 4)) for centre in centres])
    label = variety.clusters(points, 0.05)
    assert [len(set(label[7 * i : 7 * i + 7])) for i in range(5)] == [1] * 5
    assert len(set(label)) == 5
    # A chain of close neighbours is one cluster, however long.
    assert len(set(variety.clusters(np.arange(50.0)[:, None] * 0.04, 0.05))) == 1
    assert len(set(variety.clusters(np.arange(50.0)[:, None] * 0.06, 0.05))) == 50


def test_repeats_name_the_earlier_row_and_need_equal_length():
    generator = np.random.default_rng(0)
    points = generator.normal(0, 1, (6, 64))
    points[4] = points[1] + generator.normal(0, 0.01, 64)
    lengths = np.asarray([100, 100, 100, 100, 98, 100])
    assert variety.repeats(points, lengths, 0.02, 0.995) == [(4, 1)]
    assert variety.repeats(points, np.asarray([100, 100, 100, 100, 90, 100]), 0.02, 0.995) == []


def test_close_pairs_are_exact_even_where_points_nearly_agree():
    generator = np.random.default_rng(0)
    points = 1000 + generator.uniform(0, 0.1, (60, 8))
    plain = {
        (i, j) for i in range(60) for j in range(i + 1, 60) if np.sqrt(np.mean((points[i] - points[j]) ** 2)) <= 0.03
    }
    found = {
        (begin + i, j)
        for begin, near in variety.close_blocks(points, 0.03)
        for i, j in np.argwhere(near).tolist()
        if begin + i < j
    }
    assert found == plain


def test_a_reversed_copy_is_no_duplicate_and_a_warped_one_is_near():
    t = np.linspace(0, 1, 120)
    path = np.stack([np.sin(4 * t), t**2, np.cos(3 * t)], axis=1)
    warped = np.stack([np.interp(t**1.01, t, path[:, i]) for i in range(3)], axis=1)
    limit, cosine = variety.copy_likeness([path], np.zeros(96), np.random.default_rng(0))
    assert 0.9 <= cosine <= 0.995

    def far(other):
        return np.sqrt(np.mean((variety.resampled(path) - variety.resampled(other)) ** 2))

    assert far(warped) < limit < far(path[::-1])
    whole = np.round(path, 3)
    assert variety.content_hash(whole) == variety.content_hash(whole + 1e-8)
    assert variety.content_hash(path) != variety.content_hash(path[::-1])


def test_the_hull_of_a_square_with_points_inside():
    points = np.asarray([[0, 0], [2, 0], [2, 1], [0, 1], [1, 0.5], [0.2, 0.9]], dtype=float)
    assert variety.hull_area(points) == pytest.approx(2.0)


def test_neighbours_find_the_episode_that_acts_differently():
    generator = np.random.default_rng(0)
    context = generator.uniform(0, 1, (400, 2))
    owner = np.repeat(np.arange(10), 40)
    action = context @ np.ones((2, 2)) + generator.normal(0, 0.01, (400, 2))
    action[owner == 3] += 0.5
    residual, _ = neighbour_residuals(context, action, owner)
    medians = np.asarray([np.median(residual[owner == episode]) for episode in range(10)])
    assert medians.argmax() == 3
    assert medians[3] > 3 * np.delete(medians, 3).max()


# Channels and semantics


def dataset(tmp_path, state, action, lengths, **changes):
    columns = {"observation.state": state.astype(np.float32), "action": action.astype(np.float32)}
    return build_dataset(tmp_path / "set", lengths=lengths, columns=columns, **{"fps": FPS, **changes})


@pytest.mark.parametrize(("largest", "unit"), [(1.0, NORMALISED), (3.1, RADIANS), (180.0, DEGREES), (4095.0, COUNTS)])
def test_units_follow_the_largest_value(largest, unit):
    assert infer_unit({"min": np.asarray([-largest, 0.0]), "max": np.asarray([0.0, largest / 2])}) == unit


def test_channels_that_never_change_switch_or_wrap_are_told_apart(tmp_path):
    frames = 200
    turning = (np.arange(frames) * 4.0 + 180) % 360 - 180
    switch = (np.arange(frames) // 50 % 2).astype(float)
    state = np.stack([np.full(frames, 7.0), switch, turning, np.linspace(0, 90, frames)], axis=1)
    root = dataset(tmp_path, state, state, (frames,))
    channels = load_channels(open_source(root, with_rows=True), "observation.state")
    assert channels.is_dead.tolist() == [True, False, False, False]
    assert channels.is_discrete.tolist() == [False, True, False, False]
    assert np.isfinite(channels.turn).tolist() == [False, False, True, False]
    straight = channels.signal(state)[:, 2]
    assert np.abs(np.diff(straight) - 4.0).max() < 1e-3


def moves(frames=150, width=4, seed=0):
    generator = np.random.default_rng(seed)
    t = np.arange(frames) / FPS
    waves = [np.sin(2 * np.pi * generator.uniform(0.2, 0.6) * t + generator.uniform(0, 6)) for _ in range(width)]
    return 40 * np.stack(waves, axis=1)


def semantics(root):
    return check_dataset(root).facts["action"]["semantics"]


def test_absolute_delta_and_unrelated_actions_are_told_apart(tmp_path):
    paths = [moves(seed=seed) for seed in range(3)]
    state = np.concatenate(paths)
    absolute = np.concatenate([np.roll(path, -2, axis=0) for path in paths])
    delta = np.concatenate([np.gradient(path, axis=0) for path in paths])
    other = np.concatenate([moves(seed=100 + seed) for seed in range(3)])
    for name, action, expected in (("a", absolute, ABSOLUTE), ("d", delta, DELTA), ("u", other, UNKNOWN)):
        assert semantics(dataset(tmp_path / name, state, action, (150, 150, 150))) == expected


def test_delta_actions_that_jump_are_no_spikes(tmp_path):
    generator = np.random.default_rng(0)
    delta = np.where(generator.random((450, 4)) < 0.1, 20.0, 0.1) * generator.normal(0, 1, (450, 4))
    state = (np.cumsum(delta, axis=0) - delta) * 0.2
    report = check_dataset(dataset(tmp_path, state, delta, (150, 150, 150)))
    assert report.facts["action"]["semantics"] == DELTA
    assert [finding.id for finding in report.findings if finding.feature.startswith("action[")] == []
    skipped = {finding.id for finding in report.findings if finding.claim is Claim.NOT_CHECKED}
    assert {"action.lag", "action.tracking", "action.saturation", "state.frozen"} <= skipped


def test_a_flat_curve_shifts_nothing():
    assert lag_curve(np.zeros((100, 2)), ramp(100)) is None
    steady = ramp(100)
    assert lag_curve(steady, steady).error.max() < 1e-9
    assert position_correlation(steady, steady, np.asarray([True, True])) == pytest.approx(1.0)
    assert np.isnan(position_correlation(steady, steady, np.asarray([False, False])))
