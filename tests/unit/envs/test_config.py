"""Settings, the table of environments, and what is said when a package is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mimetic.envs.catalog import ENVS
from mimetic.envs.config import SPLIT_NAMES, TASK_NAMES, CellConfig, CellSuiteConfig
from mimetic.envs.tasks import TASKS
from mimetic.errors import ConfigError, MissingExtra


def test_every_task_that_can_be_named_exists():
    assert set(TASK_NAMES) == set(TASKS)


def test_all_problems_are_named_at_once():
    config = CellConfig(task="pour", split="test", width=4, distractors=5, episode_length=0, units="radians")
    with pytest.raises(ConfigError) as caught:
        config.check()
    for part in (
        "`pour`",
        *TASK_NAMES,
        "`test`",
        *SPLIT_NAMES,
        "4 pixels",
        "`distractors`: 5",
        "`radians`",
        "one tick",
    ):
        assert part in caught.value.message


def test_the_defaults_are_right():
    CellConfig().check()


def test_the_table_knows_the_cell_and_what_it_needs():
    assert ENVS["so101_cell"].extra == "sim"
    assert ENVS.load_config("so101_cell") is CellSuiteConfig
    with pytest.raises(ConfigError, match="known from LeRobot"):
        ENVS["robocasa"]


@pytest.mark.parametrize("package", ["mujoco", "gymnasium"])
def test_a_missing_package_is_named_with_the_extra(monkeypatch, package):
    from mimetic.envs import engine, gym

    engine.mujoco.cache_clear()
    gym._env_class.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    try:
        with pytest.raises(MissingExtra) as caught:
            ENVS.load("so101_cell")(CellConfig(renderer="rays"))
    finally:
        engine.mujoco.cache_clear()
        gym._env_class.cache_clear()
    if package == "mujoco" and "gymnasium" in caught.value.message:
        pytest.skip("needs the package gymnasium")
    assert caught.value.message == f"`{package}` is not installed"
    assert caught.value.hint == "`pip install 'mimetic[sim]'`"


def test_an_old_engine_is_refused(monkeypatch):
    mujoco = pytest.importorskip("mujoco", reason="needs the package mujoco")
    from mimetic.envs import engine

    engine.mujoco.cache_clear()
    monkeypatch.setattr(mujoco, "__version__", "3.3.7")
    with pytest.raises(ConfigError, match=r"version 3\.3\.7; the simulated cell needs 3\.5"):
        engine.mujoco()


def test_the_room_needs_neither_torch_nor_the_extras_to_be_imported():
    code = (
        "import sys, importlib, pkgutil, mimetic.envs as room\n"
        "for one in pkgutil.walk_packages(room.__path__, 'mimetic.envs.'): importlib.import_module(one.name)\n"
        "print([name for name in ('torch', 'mujoco', 'gymnasium', 'OpenGL') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
