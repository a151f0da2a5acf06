"""The simulated arm speaks as a real one: LeRobot's formulas on whole servo steps (spec/robots.md 2.2)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimetic.envs.arm import JOINTS, SPANS
from mimetic.envs.units import Units, calibrated_range, calibration

angle = st.tuples(*(st.floats(low, high) for low, high in SPANS))


def reported(joint, radians, body):
    """The formulas, one joint at a time, as LeRobot applies them to what a servo reports."""
    low, high = calibrated_range(joint)
    step = min(max(round(2048 + radians * 4096 / (2 * math.pi)), 0), 4095)
    inside = min(max(step, low), high)
    if joint == "gripper":
        return (inside - low) / (high - low) * 100
    if body == "degrees":
        return (step - (low + high) / 2) * 360 / 4095
    return (inside - low) / (high - low) * 200 - 100


@settings(max_examples=60)
@given(angle, st.sampled_from(["degrees", "range_m100_100"]))
def test_states_follow_the_formulas_of_the_real_arm(angles, body):
    ours = Units(body).from_radians(np.array(angles))
    assert ours.dtype == np.float32
    expected = [reported(joint, value, body) for joint, value in zip(JOINTS, angles, strict=True)]
    np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-5)  # float32 of values up to 180


def commanded(joint, value, body):
    """The step that LeRobot sends for a value, truncated as it does; goals stay in the calibrated range."""
    low, high = calibrated_range(joint)
    if joint == "gripper":
        return int(min(max(value, 0), 100) / 100 * (high - low) + low)
    if body == "degrees":
        return min(max(int(value * 4095 / 360 + (low + high) / 2), low), high)
    return int((min(max(value, -100), 100) + 100) / 200 * (high - low) + low)


@settings(max_examples=60)
@given(st.lists(st.floats(-200, 200), min_size=6, max_size=6), st.sampled_from(["degrees", "range_m100_100"]))
def test_commands_follow_the_formulas_of_the_real_arm(values, body):
    steps = Units(body).to_radians(np.array(values)) * 4096 / (2 * math.pi) + 2048
    expected = [commanded(joint, value, body) for joint, value in zip(JOINTS, values, strict=True)]
    np.testing.assert_allclose(steps, expected, rtol=0, atol=1e-6)


@settings(max_examples=60)
@given(angle, st.sampled_from(["degrees", "range_m100_100"]))
def test_sending_back_what_was_reported_moves_a_joint_by_a_step_at_most(angles, body):
    units = Units(body)
    again = units.to_radians(units.from_radians(np.array(angles)))
    # Reporting rounds, commanding truncates: half a step and one, plus the calibrated range's own rounding.
    assert np.abs(again - np.array(angles)).max() < 2.1 * 2 * math.pi / 4096


@settings(max_examples=60)
@given(angle, st.sampled_from(["degrees", "range_m100_100"]))
def test_states_lie_in_the_calibrated_range(angles, body):
    units = Units(body)
    low, high = units.bounds()
    values = units.from_radians(np.array(angles))
    assert (values >= low - 1e-4).all()
    assert (values <= high + 1e-4).all()


def test_both_units_command_the_same_angles():
    angles = np.array([0.3, -0.5, 0.7, 1.1, -2.0, 0.9])
    goals = [Units(body).to_radians(Units(body).from_radians(angles)) for body in ("degrees", "range_m100_100")]
    np.testing.assert_allclose(goals[0], goals[1], rtol=0, atol=1.1 * 2 * math.pi / 4096)


def test_goals_beyond_the_range_are_clipped():
    for body in ("degrees", "range_m100_100"):
        units = Units(body)
        low, high = units.bounds()
        step = 1.01 * 2 * math.pi / 4096  # float32 of the bound may lie just below it, and commands are truncated
        np.testing.assert_allclose(units.to_radians(high * 2.0), units.to_radians(high), rtol=0, atol=step)
        np.testing.assert_allclose(units.to_radians(np.full(6, -1000.0)), units.to_radians(low), rtol=0, atol=step)


def test_the_gripper_is_0_closed_and_100_open():
    closed, opened = (np.array([span[side] for span in SPANS]) for side in (0, 1))
    for body in ("degrees", "range_m100_100"):
        assert Units(body).from_radians(closed)[5] == 0
        assert Units(body).from_radians(opened)[5] == 100


def test_a_middle_joint_is_zero_degrees():
    assert Units("degrees").from_radians(np.zeros(6))[:4].tolist() == [0, 0, 0, 0]


def test_the_calibration_has_the_form_of_a_file_of_lerobot():
    rows = calibration()
    assert list(rows) == list(JOINTS)
    assert rows["wrist_roll"] == {
        "id": 5,
        "drive_mode": 0,
        "homing_offset": 0,
        "range_min": 0,
        "range_max": 4095,
    }
    assert (rows["shoulder_pan"]["range_min"], rows["shoulder_pan"]["range_max"]) == (796, 3300)


@pytest.mark.parametrize("body", ["degrees", "range_m100_100"])
def test_inputs_are_left_as_they_are(body):
    values = np.full(6, 500.0)
    Units(body).to_radians(values)
    assert values.tolist() == [500.0] * 6
