import numpy as np
import pytest
import torch

from mimetic.errors import TrainingError
from mimetic.train.guard import FiniteGuard, describe_frames

BATCH = {
    "index": torch.tensor([31, 3, 8]),
    "episode_index": torch.tensor([2, 0, 0]),
    "frame_index": torch.tensor([11, 3, 8]),
}


def test_a_bad_loss_names_step_episode_frames_and_cause():
    guard = FiniteGuard(torch.device("cpu"), lambda indices: f"`action` at index {indices[0]} is nan")
    guard.watch(6, BATCH, torch.tensor(1.0), torch.tensor(2.0))
    with pytest.raises(TrainingError) as caught:
        guard.watch(7, BATCH, torch.tensor(float("nan")), None)
    assert caught.value.message == (
        "the loss or its gradient is not finite at step 7; the batch was episode 0 frames 3, 8; episode 2 frame 11 "
        "(index 31, 3, 8); `action` at index 31 is nan"
    )


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_a_bad_norm_stops_too(value):
    with pytest.raises(TrainingError, match="step 1"):
        FiniteGuard(torch.device("cpu")).watch(1, BATCH, torch.tensor(1.0), torch.tensor(value))


def test_deferred_answers_name_the_step_that_went_wrong():
    # A device without events answers when asked to wait, and the first bad step is the one that is named.
    guard = FiniteGuard(torch.device("meta"))
    for step in range(1, 5):
        guard.watch(step, BATCH, torch.tensor(float("nan") if step >= 3 else 1.0))
    with pytest.raises(TrainingError, match="at step 3"):
        guard.wait()


def test_pending_answers_are_bounded():
    guard = FiniteGuard(torch.device("meta"))
    for step in range(500):
        guard.watch(step, BATCH, torch.tensor(1.0))
    assert len(guard._deferred._pending) <= 64


def test_frames_without_episode_columns_are_named_by_index():
    assert describe_frames({"index": torch.tensor([4, 2])}) == "index [4, 2]"
    assert describe_frames({}) == "of unknown frames"
    assert np.isfinite(1.0)
