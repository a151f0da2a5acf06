"""The synthetic language task is what its description says, and what the reader gives back."""

import numpy as np
import pytest

from mimetic.data.metadata import Metadata
from mimetic.data.reader import open_dataset
from mimetic.testing.language_task import BLUE, INSTRUCTIONS, RED, LanguageTask, build_language_dataset

TASK = LanguageTask(scenes=3, frames=6, size=(48, 64))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return build_language_dataset(tmp_path_factory.mktemp("language") / "data", TASK)


def test_every_scene_is_recorded_once_with_each_instruction(root):
    dataset = open_dataset("me/blocks", root=str(root))
    first = dataset.batch(range(0, len(dataset), TASK.frames))
    assert first["task"] == [*INSTRUCTIONS] * 3
    states = first["observation.state"].numpy()
    np.testing.assert_array_equal(states[0::2], states[1::2])
    np.testing.assert_allclose(states[0::2], TASK.starts, rtol=1e-6)
    # The first pictures of a scene are the same, so nothing but the text tells the tasks apart.
    pictures = first["observation.images.top"].numpy()
    np.testing.assert_array_equal(pictures[0::2], pictures[1::2])
    assert pictures.shape == (6, 3, 48, 64)


def test_recorded_actions_are_the_demonstrators_from_the_recorded_state(root):
    dataset = open_dataset("me/blocks", root=str(root), delta_indices={"action": range(4)})
    for episode in range(6):
        scene, colour = divmod(episode, 2)
        for frame in (0, 2):  # the last windows of an episode are padded
            sample = dataset[episode * TASK.frames + frame]
            expected = TASK.chunk(sample["observation.state"].numpy(), TASK.blocks[scene, colour], 4)
            np.testing.assert_allclose(sample["action"].numpy(), expected, atol=1e-6)


def test_the_red_block_is_left_and_the_blue_one_right_and_the_gripper_where_the_state_says(root):
    assert (TASK.blocks[:, RED, 0] < 0).all()
    assert (TASK.blocks[:, BLUE, 0] > 0).all()
    for scene in range(TASK.scenes):
        picture = TASK.draw(2 * scene + BLUE, 3, TASK.size).astype(int)
        for channel, colour in ((0, RED), (2, BLUE)):
            painted = picture[..., channel] - picture[..., 1] > 100
            middle = _place(painted)
            # Within the radius of a gripper that may cover a part of the block.
            assert np.linalg.norm(middle - TASK.blocks[scene, colour]) < 0.1
        white = (picture > 200).all(axis=-1)
        np.testing.assert_allclose(_place(white), TASK.path(scene, BLUE)[3], atol=0.05)  # a pixel is 0.04


def _place(mask):
    rows, columns = np.nonzero(mask)
    height, width = mask.shape
    return np.array([2 * columns.mean() / (width - 1) - 1, 1 - 2 * rows.mean() / (height - 1)])


def test_statistics_of_the_camera_are_those_of_its_pictures(root):
    stats = Metadata.open(root).stats["observation.images.top"]
    pictures = np.stack([TASK.draw(episode, frame, TASK.size) for episode in range(6) for frame in range(6)]) / 255
    # Every second picture counts.
    np.testing.assert_allclose(stats["mean"].ravel(), pictures.mean(axis=(0, 1, 2)), atol=0.003)
    assert stats["max"].ravel()[0] == pytest.approx(235 / 255)


def test_another_seed_gives_other_scenes_and_the_same_seed_the_same():
    assert not np.array_equal(LanguageTask(seed=1).blocks, LanguageTask().blocks)
    np.testing.assert_array_equal(LanguageTask(scenes=3).blocks[:1, RED, 0], LanguageTask(scenes=3).blocks[:1, RED, 0])
