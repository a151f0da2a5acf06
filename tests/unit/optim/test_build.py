"""Optimisers from settings."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mimetic.errors import ConfigError
from mimetic.optim.build import describe_optimizer, make_optimizer
from mimetic.optim.config import AdamConfig, AdamWConfig, OptimizerConfig, SGDConfig


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (AdamConfig(lr=2e-3, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1), torch.optim.Adam),
        (AdamWConfig(lr=2e-3, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1), torch.optim.AdamW),
        (SGDConfig(lr=2e-3, momentum=0.9, nesterov=True, weight_decay=0.1), torch.optim.SGD),
    ],
)
def test_every_setting_but_the_clipping_norm_reaches_torch(config, kind):
    optimizer = make_optimizer(config, [nn.Parameter(torch.zeros(2))])
    assert type(optimizer) is kind
    group = optimizer.param_groups[0]
    for key in ("lr", "betas", "eps", "weight_decay", "momentum", "nesterov"):
        if hasattr(config, key):
            assert group[key] == getattr(config, key)
    assert "grad_clip_norm" not in group


def test_groups_keep_their_own_rate_and_may_be_empty():
    groups = [{"params": [nn.Parameter(torch.zeros(2))]}, {"params": [], "lr": 1e-5}]
    optimizer = make_optimizer(AdamWConfig(lr=1e-3), groups)
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 1e-5]


def test_keys_of_a_group_are_those_of_the_file_format():
    optimizer = make_optimizer(AdamWConfig(), [nn.Parameter(torch.zeros(2))])
    expected = "lr betas eps weight_decay amsgrad maximize foreach capturable differentiable fused"
    group = optimizer.param_groups[0]
    assert list(group)[1:] == [*expected.split(), "decoupled_weight_decay"]
    assert group["foreach"] is None
    assert group["fused"] is None


def test_values_that_torch_refuses_are_a_config_error():
    with pytest.raises(ConfigError, match=r"learning rate.*-1"):
        make_optimizer(AdamWConfig(lr=-1.0), [nn.Parameter(torch.zeros(2))])


def test_unknown_settings_are_refused():
    with pytest.raises(ConfigError, match="OptimizerConfig"):
        make_optimizer(OptimizerConfig(), [nn.Parameter(torch.zeros(2))])


def test_an_optimizer_is_described_in_one_line():
    config = AdamWConfig(lr=1e-4, weight_decay=1e-10, betas=(0.9, 0.95))
    optimizer = make_optimizer(config, [{"params": [nn.Parameter(torch.zeros(2))]}])
    expected = "optimiser: adamw lr=0.0001 weight_decay=1e-10 grad_clip_norm=10 betas=(0.9, 0.95) eps=1e-08"
    assert describe_optimizer("adamw", config, optimizer) == expected


def test_other_rates_of_groups_are_named_and_the_schedule_does_not_hide_them():
    config = SGDConfig(lr=1e-3)
    groups = [{"params": [nn.Parameter(torch.zeros(2))]}, {"params": [nn.Parameter(torch.zeros(2))], "lr": 1e-5}]
    optimizer = make_optimizer(config, groups)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    described = describe_optimizer("sgd", config, optimizer)
    assert described.endswith("nesterov=False, and lr=1e-05 for some weights")
