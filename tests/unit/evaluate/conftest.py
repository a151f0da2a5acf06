"""Toy environment and stand-in policies, registered for a test."""

from __future__ import annotations

from dataclasses import replace

import pytest
import toy_env

from mimetic.data.features import policy_features
from mimetic.envs.catalog import ENVS
from mimetic.evaluate.config import EvalConfig
from mimetic.evaluate.rollout.adapters import ADAPTERS
from mimetic.policies.catalog import POLICIES
from mimetic.policies.checkpoint import read_config
from mimetic.testing import script_policy
from mimetic.testing.script_policy import Script, save_scripts
from mimetic.train.config import EnvEvalConfig

SEED = 1000


class Toys:
    """Makes checkpoints that know the toy's answers, and settings of evaluations of them."""

    def __init__(self, folder):
        self.folder = folder

    def checkpoint(self, name="expert", *, known=range(60), noise=0.0, split=0):
        """A policy that knows episodes SEED + k for k in `known`."""
        scripts = []
        for number in known:
            colour, points = toy_env.layout(SEED + number, split)
            script = toy_env.script(SEED + number, split)
            scripts.append(Script(toy_env.picture(points), toy_env.instruction(colour), script))
        features = policy_features(toy_env.toy_tasks(toy_env.ToyEnvConfig())[0].features)
        return save_scripts(self.folder / name, scripts, features, noise=noise)

    def config(self, checkpoint, output, *, n=12, batch_size=4, splits=1, fail_at=-1, **settings):
        """Settings of `mimetic eval`."""
        return EvalConfig(
            policy=replace(read_config(checkpoint), pretrained_path=str(checkpoint)),
            env=toy_env.ToyEnvConfig(splits=splits, fail_at=fail_at),
            eval=EnvEvalConfig(n_episodes=n, batch_size=batch_size, use_async_envs=False),
            output_dir=self.folder / output,
            **{"seed": SEED, **settings},
        )


@pytest.fixture
def toys(monkeypatch, tmp_path):
    """The toy environment and the scripted policy, known by name."""
    for catalog in (ENVS, ADAPTERS):
        monkeypatch.setitem(catalog._entries, toy_env.NAME, toy_env.ENTRY)
    monkeypatch.setitem(POLICIES._entries, script_policy.NAME, script_policy.ENTRY)
    return Toys(tmp_path)
