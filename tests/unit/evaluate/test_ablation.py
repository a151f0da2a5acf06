import pytest
import torch

from mimetic.evaluate.ablation import blank, instruct, other_instructions


def test_a_blank_camera_shows_its_colour_in_its_own_dtype():
    colours = {"observation.images.top": torch.tensor([0.2, 0.4, 0.6]).reshape(3, 1, 1)}
    for dtype, expected in ((torch.uint8, [51, 102, 153]), (torch.float32, [0.2, 0.4, 0.6])):
        batch = {"observation.images.top": torch.ones(2, 3, 4, 5, dtype=dtype), "observation.state": torch.ones(2, 6)}
        blank(batch, colours)
        picture = batch["observation.images.top"]
        assert picture.dtype is dtype
        assert picture.shape == (2, 3, 4, 5)
        assert picture[1, :, 3, 4].tolist() == pytest.approx(expected)
        assert batch["observation.state"].eq(1).all()


@pytest.mark.parametrize(
    ("texts", "others"),
    [
        ([], {}),
        (["", " "], {}),
        (["pick", "pick", "pick\n"], {}),
        (["pick", "", "pick"], {}),
        (["pick", "place"], {"pick": "place", "place": "pick"}),
        (["a", "b", "a", "c"], {"a": "b", "b": "c", "c": "a"}),
    ],
)
def test_every_task_gets_another_one_where_there_is_another_one(texts, others):
    assert other_instructions(texts) == others


def test_an_instruction_is_replaced_and_its_number_does_not_give_it_away():
    batch = {"task": ["pick", "place\n", "fold"], "task_index": torch.arange(3), "observation.state": torch.ones(3, 2)}
    instruct(batch, {"pick": "place", "place": "pick"})
    assert batch["task"] == ["place", "pick", ""]
    assert "task_index" not in batch
    instruct(batch, {})
    assert batch["task"] == ["", "", ""]
