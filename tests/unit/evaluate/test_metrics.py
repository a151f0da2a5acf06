import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimetic.errors import ShapeError
from mimetic.evaluate.metrics import (
    HOLD,
    MEAN,
    POLICY,
    chunk_sums,
    horizon,
    intervals,
    join,
    joint_scale,
    only_episode,
    summarise,
)

CHUNKS, STEPS, JOINTS = 12, 7, 4


def walk(seed=0, chunks=CHUNKS, steps=STEPS, joints=JOINTS):
    """Recorded chunks that start at `hold` and walk away from it; the units of the joints differ a lot."""
    generator = np.random.default_rng(seed)
    units = 10.0 ** np.arange(joints)
    hold = generator.normal(size=(chunks, joints)) * units
    recorded = hold[:, None] + np.cumsum(generator.normal(size=(chunks, steps, joints)), axis=1) * units
    episode = np.repeat(np.arange(3), chunks // 3)
    return recorded, hold, episode, units


def scored(predicted, recorded, hold, episode, *, valid=None, mean=None):
    valid = np.ones(recorded.shape[:2], bool) if valid is None else valid
    mean = recorded.reshape(-1, recorded.shape[2]).mean(axis=0) if mean is None else mean
    return chunk_sums(predicted, recorded, valid, hold=hold, mean=mean, episode=episode)


def test_a_perfect_policy_has_skill_one_and_moves_as_recorded():
    recorded, hold, episode, units = walk()
    scores = summarise(scored(recorded, recorded, hold, episode), units)
    assert scores.mae[POLICY].tolist() == [0.0] * JOINTS
    assert scores.rmse[POLICY].tolist() == [0.0] * JOINTS
    assert scores.skill_hold.tolist() == [1.0] * JOINTS
    assert scores.overall_skill_hold == scores.overall_skill_mean == 1.0
    assert scores.overall_movement == 1.0


def test_a_holding_policy_has_skill_zero_and_does_not_move():
    recorded, hold, episode, units = walk()
    predicted = np.repeat(hold[:, None], STEPS, axis=1)
    scores = summarise(scored(predicted, recorded, hold, episode), units)
    np.testing.assert_array_equal(scores.mae[POLICY], scores.mae[HOLD])
    assert scores.skill_hold.tolist() == [0.0] * JOINTS
    assert scores.overall_skill_hold == 0.0
    assert scores.overall_movement == 0.0


def test_a_policy_that_sends_the_mean_has_no_skill_against_the_mean():
    recorded, hold, episode, units = walk()
    mean = recorded.reshape(-1, JOINTS).mean(axis=0)
    scores = summarise(scored(np.broadcast_to(mean, recorded.shape), recorded, hold, episode), units)
    np.testing.assert_array_equal(scores.mae[POLICY], scores.mae[MEAN])
    assert scores.overall_skill_mean == 0.0
    assert scores.overall_movement == 0.0


def test_the_numbers_are_those_of_the_definition():
    recorded, hold, episode, units = walk(1)
    predicted = recorded + np.random.default_rng(2).normal(size=recorded.shape) * units
    valid = np.arange(STEPS)[None] < np.array([STEPS] * 9 + [3, 2, 1])[:, None]
    mean = np.arange(JOINTS, dtype=float)
    scores = summarise(scored(predicted, recorded, hold, episode, valid=valid, mean=mean), units)
    for joint in range(JOINTS):
        errors = [
            abs(predicted[n, k, joint] - recorded[n, k, joint])
            for n in range(CHUNKS)
            for k in range(STEPS)
            if valid[n, k]
        ]
        still = [
            abs(hold[n, joint] - recorded[n, k, joint]) for n in range(CHUNKS) for k in range(STEPS) if valid[n, k]
        ]
        assert scores.mae[POLICY, joint] == pytest.approx(np.mean(errors))
        assert scores.rmse[POLICY, joint] == pytest.approx(np.sqrt(np.mean(np.square(errors))))
        assert scores.skill_hold[joint] == pytest.approx(1 - np.mean(errors) / np.mean(still))
        assert scores.normalised[POLICY, joint] == pytest.approx(np.mean(errors) / units[joint])
    assert scores.overall[POLICY] == pytest.approx(scores.normalised[POLICY].mean())
    assert scores.steps == valid.sum()


def test_half_the_recorded_displacement_is_a_movement_ratio_of_one_half():
    recorded, hold, episode, units = walk()
    start = recorded[:, :1]
    scores = summarise(scored(start + 0.5 * (recorded - start), recorded, hold, episode), units)
    assert scores.overall_movement == pytest.approx(0.5)
    np.testing.assert_allclose(scores.movement, 0.5)


def test_a_constant_offset_is_an_error_but_no_movement():
    recorded, hold, episode, units = walk()
    predicted = np.repeat(hold[:, None] + 5 * units, STEPS, axis=1)
    scores = summarise(scored(predicted, recorded, hold, episode), units)
    assert scores.overall_movement == 0.0
    assert scores.overall_skill_hold < 0


def test_movement_of_a_one_step_chunk_is_taken_from_the_held_pose():
    recorded, hold, episode, units = walk(steps=1)
    assert summarise(scored(recorded, recorded, hold, episode), units).overall_movement == 1.0
    assert summarise(scored(hold[:, None], recorded, hold, episode), units).overall_movement == 0.0


@pytest.mark.parametrize("garbage", [1e12, np.nan, np.inf])
def test_values_at_padded_steps_are_never_read(garbage):
    recorded, hold, episode, units = walk()
    predicted = recorded + units
    valid = np.arange(STEPS)[None] < np.arange(1, CHUNKS + 1)[:, None]
    clean = scored(predicted, recorded, hold, episode, valid=valid, mean=np.zeros(JOINTS))
    dirty = scored(
        np.where(valid[..., None], predicted, -garbage),
        np.where(valid[..., None], recorded, garbage),
        hold,
        episode,
        valid=valid,
        mean=np.zeros(JOINTS),
    )
    for name in ("count", "abs_error", "square_error", "moved", "step_abs", "step_count"):
        np.testing.assert_array_equal(getattr(clean, name), getattr(dirty, name))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_order_of_chunks_and_joints_does_not_matter(seed):
    generator = np.random.default_rng(seed)
    recorded, hold, episode, units = walk(seed)
    predicted = recorded + generator.normal(size=recorded.shape) * units
    mean = recorded.reshape(-1, JOINTS).mean(axis=0)
    plain = scored(predicted, recorded, hold, episode, mean=mean)
    order = generator.permutation(CHUNKS)
    shuffled = scored(predicted[order], recorded[order], hold[order], episode[order], mean=mean)
    joints = generator.permutation(JOINTS)
    turned = scored(predicted[..., joints], recorded[..., joints], hold[:, joints], episode, mean=mean[joints])
    wanted = summarise(plain, units)
    for scores, back in (
        (summarise(shuffled, units), slice(None)),
        (summarise(turned, units[joints]), np.argsort(joints)),
    ):
        np.testing.assert_allclose(scores.mae[:, back], wanted.mae, rtol=1e-12)
        np.testing.assert_allclose(scores.skill_hold[back], wanted.skill_hold, rtol=1e-9)
        assert scores.overall_skill_hold == pytest.approx(wanted.overall_skill_hold, rel=1e-9)
        assert scores.overall_movement == pytest.approx(wanted.overall_movement, rel=1e-9)
    one, other = (intervals(sums, units, seed=3, resamples=50) for sums in (plain, shuffled))
    np.testing.assert_allclose(one.overall_skill_hold, other.overall_skill_hold, rtol=1e-9)


def test_sums_of_parts_join_to_the_sums_of_the_whole():
    recorded, hold, episode, units = walk()
    predicted = recorded * 1.1
    mean = np.zeros(JOINTS)
    whole = scored(predicted, recorded, hold, episode, mean=mean)
    parts = join(
        [
            scored(predicted[part], recorded[part], hold[part], episode[part], mean=mean)
            for part in (slice(0, 5), slice(5, 6), slice(6, CHUNKS))
        ]
    )
    np.testing.assert_allclose(horizon(parts, units), horizon(whole, units), rtol=1e-12)
    np.testing.assert_array_equal(summarise(parts, units).mae, summarise(whole, units).mae)
    np.testing.assert_array_equal(
        intervals(parts, units, seed=0).overall_skill_hold, intervals(whole, units, seed=0).overall_skill_hold
    )


def test_the_curve_over_steps_ahead_averages_to_the_overall_error():
    recorded, hold, episode, units = walk()
    sums = scored(recorded + units * np.arange(STEPS)[None, :, None], recorded, hold, episode)
    curve = horizon(sums, units)
    np.testing.assert_allclose(curve[POLICY], np.arange(STEPS))
    assert curve[POLICY].mean() == pytest.approx(summarise(sums, units).overall[POLICY])


def test_a_step_ahead_that_no_chunk_reaches_has_no_error():
    recorded, hold, episode, units = walk()
    valid = np.ones((CHUNKS, STEPS), bool)
    valid[:, -1] = False
    curve = horizon(scored(recorded, recorded, hold, episode, valid=valid), units)
    assert np.isnan(curve[:, -1]).all()
    assert np.isfinite(curve[:, :-1]).all()


def test_a_joint_that_never_moves_is_left_out_of_the_overall_numbers():
    actions = np.random.default_rng(0).normal(size=(50, 2)) + 100
    actions[:, 1] = 3.3
    scale = joint_scale(actions)
    assert np.isnan(scale).tolist() == [False, True]
    recorded = actions[None].repeat(2, axis=0)
    scores = summarise(scored(recorded + [0.0, 1e6], recorded, recorded[:, 0], np.zeros(2)), scale)
    assert scores.overall[POLICY] == 0.0
    assert scores.mae[POLICY, 1] == pytest.approx(1e6)
    assert scores.overall_movement == pytest.approx(1.0)


def test_the_unit_of_errors_is_the_deviation_in_training():
    # A joint that happens to rest in the evaluated episode must not outweigh those that move.
    actions = np.random.default_rng(0).normal(size=(50, 2)) * [1.0, 1e-4]
    np.testing.assert_array_equal(joint_scale(actions, training_std=np.array([2.0, 1.0])), [2.0, 1.0])
    np.testing.assert_allclose(joint_scale(actions), actions.std(axis=0))


def test_only_notable_differences_make_a_joint_worse_than_holding():
    recorded, hold, episode, units = walk()
    held = np.repeat(hold[:, None], STEPS, axis=1)
    further = np.sign(held - recorded) * units * [0.01, 0.02, 0.2, 0.0]
    scores = summarise(scored(held + further, recorded, hold, episode), units)
    assert (scores.skill_hold[:3] < 0).all()
    assert scores.worse_than_hold.tolist() == [False, False, True, False]


def test_an_episode_alone_gives_the_numbers_of_its_chunks():
    recorded, hold, episode, units = walk()
    mean = np.ones(JOINTS)
    sums = scored(recorded * 1.2, recorded, hold, episode, mean=mean)
    rows = episode == 1
    alone = scored(recorded[rows] * 1.2, recorded[rows], hold[rows], episode[rows], mean=mean)
    np.testing.assert_array_equal(summarise(only_episode(sums, 1), units).mae, summarise(alone, units).mae)


def test_intervals_repeat_with_the_seed_and_contain_the_skill():
    recorded, hold, episode, units = walk(4)
    sums = scored(recorded + units, recorded, hold, episode)
    one, again, other = (intervals(sums, units, seed=seed).overall_skill_hold for seed in (1, 1, 2))
    assert one.tolist() == again.tolist() != other.tolist()
    assert one[0] < summarise(sums, units).overall_skill_hold < one[1]


def test_intervals_widen_when_episodes_differ_more_than_chunks():
    recorded, hold, _, units = walk(5, chunks=60)
    quality = np.repeat([0.1, 0.5, 1.0], 20)[:, None, None]
    predicted = hold[:, None] + (1 - quality) * (recorded - hold[:, None])
    by_episode, shuffled = np.repeat(np.arange(3), 20), np.tile(np.arange(3), 20)
    width = [
        float(np.diff(intervals(scored(predicted, recorded, hold, groups), units, seed=0).overall_skill_hold)[0])
        for groups in (by_episode, shuffled)
    ]
    assert width[0] > 1.5 * width[1]


def test_one_chunk_has_no_interval():
    recorded, hold, episode, units = walk(chunks=3)
    sums = scored(recorded[:1], recorded[:1], hold[:1], episode[:1])
    assert np.isnan(intervals(sums, units, seed=0).overall_skill_hold).all()


def test_shapes_that_do_not_belong_together_are_refused():
    recorded, hold, episode, _ = walk()
    with pytest.raises(ShapeError, match="predicted chunks"):
        scored(recorded[:, :3], recorded, hold, episode)
    with pytest.raises(ShapeError, match="`hold` has shape"):
        scored(recorded, recorded, hold[:, :2], episode)
    with pytest.raises(ShapeError, match="no chunks"):
        join([])
