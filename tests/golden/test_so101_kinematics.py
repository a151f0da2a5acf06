"""The arm is an SO-101: forward kinematics and Jacobians of 40 poses (tests/fixtures/robots/README.md).

Tolerance 1e-6 m, 1e-6 in rotation entries: the fixture's link offsets are rounded to 7 digits.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from mimetic.envs.arm import CHAIN, JOINTS, SITE_POSITION
from mimetic.envs.scene import scene_xml, zero_pose
from mimetic.envs.tasks import TASKS

TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def golden(fixtures):
    return json.loads((fixtures / "robots" / "so101_kinematics.json").read_text())


@pytest.fixture(scope="module", params=sorted(TASKS))
def kinematics(request):
    mujoco = pytest.importorskip("mujoco", reason="needs the package mujoco")
    from mimetic.envs.kinematics import ArmKinematics

    return ArmKinematics(mujoco.MjModel.from_xml_string(scene_xml(TASKS[request.param], width=16, height=16)))


def test_forward_kinematics_and_jacobians(golden, kinematics):
    assert len(golden["cases"]) == 40
    for case in golden["cases"]:
        position, orientation = kinematics.frame(case["q_rad"])
        moving, turning = kinematics.jacobian(case["q_rad"])
        for ours, name in ((position, "pos"), (orientation, "rot"), (moving, "jac_pos"), (turning, "jac_rot")):
            np.testing.assert_allclose(ours.ravel(), case[name], rtol=0, atol=TOLERANCE, err_msg=name)


def test_names_ranges_and_masses(golden):
    assert list(JOINTS) == golden["joint_order"]
    for link, row in zip(CHAIN, golden["chain"], strict=True):
        assert (link.joint or None) == row["joint"]
        assert link.mass == row["mass"]
        if link.joint:
            assert list(link.span) == row["range"]


def test_the_drawing_stands_where_the_arm_is(golden):
    """Parts are drawn in the zero pose; that pose, computed here without MuJoCo, is the golden one."""
    case = golden["cases"][0]
    assert case["q_rad"] == [0.0] * 6
    origin, frame = zero_pose("gripper")
    np.testing.assert_allclose(origin + frame @ SITE_POSITION, case["pos"], rtol=0, atol=TOLERANCE)
