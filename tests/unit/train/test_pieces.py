import pytest
import torch

from mimetic.train.pieces import batch_length, split_batch

BATCH = {
    "action": torch.arange(10.0).reshape(5, 2),
    "task": list("abcde"),
    "scalar": torch.tensor(7),
    "table": torch.zeros(3, 2),
    "note": "whole",
}


@pytest.mark.parametrize(("pieces", "sizes"), [(1, [5]), (2, [2, 3]), (4, [1, 1, 2, 1]), (8, [1, 1, 1, 1, 1])])
def test_parts_are_views_in_order_that_make_up_the_batch(pieces, sizes):
    parts = list(split_batch(BATCH, pieces))
    assert [batch_length(part) for part in parts] == sizes
    assert torch.equal(torch.cat([part["action"] for part in parts]), BATCH["action"])
    assert [task for part in parts for task in part["task"]] == BATCH["task"]
    for part in parts:
        assert part["scalar"] is BATCH["scalar"]
        assert part["table"] is BATCH["table"]
        assert part["note"] == "whole"
        assert part["action"].untyped_storage().data_ptr() == BATCH["action"].untyped_storage().data_ptr()


def test_the_length_of_a_batch_without_tensors_is_not_guessed():
    with pytest.raises(ValueError, match="no tensor"):
        batch_length({"task": ["a"]})
