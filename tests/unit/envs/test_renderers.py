"""Both renderers draw the same cell, one is chosen with a reason, and a person sees what the task is about."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from mimetic.envs.config import SPLIT_NAMES, TASK_NAMES
from mimetic.errors import ConfigError

SIZE = {"width": 96, "height": 96}


def pixels(cell, *names, camera="front"):
    """How many pixels of a picture show the things of these names."""
    seen = cell.segmentation(camera)
    bodies = [cell.model.body(name) for name in names]
    geoms = [number for body in bodies for number in range(body.geomadr[0], body.geomadr[0] + body.geomnum[0])]
    return int(np.isin(seen, geoms).sum())


@pytest.mark.parametrize("task", TASK_NAMES)
@pytest.mark.parametrize("split", ["train", "shifted_camera", "shifted_light"])
def test_rays_and_opengl_agree(cells, task, split):
    from mimetic.envs.render.choose import failure

    if failure("egl"):
        pytest.skip("needs OpenGL by egl")
    rays, opengl = (cells(task=task, split=split, renderer=name, **SIZE) for name in ("rays", "egl"))
    for seed in (0, 1):
        for cell in (rays, opengl):
            cell.reset(seed)
            for _ in range(6):
                cell.step((30, -20, 30, 60, 40, 50))
        for camera in ("front", "wrist"):
            same = rays.segmentation(camera) == opengl.segmentation(camera)
            assert same.mean() > 0.985  # edges of things fall on this or that side of a pixel's middle
            apart = np.abs(rays.picture(camera).astype(int) - opengl.picture(camera))[same]
            # The rest: OpenGL blends the table's pattern between texture elements, and rounds its lighting.
            assert apart.mean() < 3
            assert np.quantile(apart, 0.99) <= 13


def test_painters_of_different_scenes_do_not_disturb_each_other(cells, renderer):
    """OpenGL has one drawing surface bound at a time; each painter must bind its own."""
    first = cells(task="stack", renderer=renderer)
    first.reset(0)
    alone = first.picture("front")
    other = cells(task="reach", renderer=renderer, **SIZE)
    other.reset(0)
    other.picture("front")
    np.testing.assert_array_equal(first.picture("front"), alone)
    assert other.picture("front").shape == (96, 96, 3)


def test_threads_draw_one_after_the_other(cells, renderer):
    """A thread that ended must leave nothing bound: its number, and what it held, may come back in the next one."""
    from concurrent.futures import ThreadPoolExecutor

    from mimetic.envs.cell import Cell

    config = cells(task="reach", renderer=renderer).config
    here = cells(task="reach", renderer=renderer)
    here.reset(3)

    def draw():
        cell = Cell(config)
        cell.reset(3)
        return cell.picture("front")

    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            np.testing.assert_array_equal(pool.submit(draw).result(), here.picture("front"))


@pytest.mark.parametrize("task", TASK_NAMES)
@pytest.mark.parametrize("split", SPLIT_NAMES)
def test_the_front_camera_sees_what_the_task_is_about(cells, task, split):
    cell = cells(task=task, split=split, **SIZE)
    goal = {"reach": "ball", "push": "mat", "stack": "under"}.get(task, "bin")
    for seed in range(6):
        cell.reset(seed)
        assert pixels(cell, cell.task.actor) >= 15
        assert pixels(cell, goal) >= 15
        assert pixels(cell, "gripper", "jaw") >= 60


def test_the_wrist_camera_sees_the_jaws_and_what_they_hold(cells):
    from mimetic.envs.demonstration import demonstrate
    from mimetic.envs.manner import IDEAL

    cell = cells(task="pick_place", **SIZE)
    actions = demonstrate(cell, IDEAL, 0, pictures=False).frames["action"]
    cell.reset(0)
    for action in actions:
        cell.step(action)
        if cell.scene().positions["cube"][2] > 0.05:
            break
    assert pixels(cell, "cube", camera="wrist") > 300
    assert pixels(cell, "gripper", "jaw", camera="wrist") > 1000


def test_every_ray_ends_somewhere(cells):
    for split in SPLIT_NAMES:
        cell = cells(task="reach", split=split)
        cell.reset(1)
        for camera in ("front", "wrist"):
            assert (cell.segmentation(camera) >= 0).all()


def test_the_ray_renderer_shades_by_lamberts_law(cells):
    """One pixel by hand: base colour times (ambient + lamp * cosine + head lamp * cosine)."""
    cell = cells(task="pick_place", **SIZE)
    cell.reset(0)
    rows, columns = np.nonzero(cell.segmentation("front") == cell.model.geom("bin_floor").id)
    row, column = rows[len(rows) // 2], columns[len(columns) // 2]
    model, data = cell.model, cell.data
    up = np.array([0.0, 0.0, 1.0])
    towards_camera = data.cam_xmat[model.camera("front").id].reshape(3, 3)[:, 2]
    light = (
        model.vis.headlight.ambient
        + max(0, up @ -data.light_xdir[0]) * model.light_diffuse[0]
        + max(0, up @ towards_camera) * model.vis.headlight.diffuse
    )
    expected = model.geom("bin_floor").rgba[:3] * light * 255
    np.testing.assert_allclose(cell.picture("front")[row, column], expected, rtol=0, atol=1)


@pytest.fixture
def choices():
    pytest.importorskip("mujoco", reason="needs the package mujoco")
    from mimetic.envs.render import choose

    choose._choose.cache_clear()
    yield choose
    choose._choose.cache_clear()


def test_auto_takes_opengl_where_a_trial_works(choices, monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(choices, "failure", lambda name: "" if name == "osmesa" else "no library")
    monkeypatch.setattr(choices, "_usual_order", lambda: ("egl", "osmesa", "native"))
    assert choices.choose_renderer("auto").name == "osmesa"


def test_auto_says_why_it_takes_rays(choices, monkeypatch, caplog):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(choices, "failure", lambda name: f"{name} is not here")
    monkeypatch.setattr(choices, "_usual_order", lambda: ("egl", "native"))
    with caplog.at_level("INFO", logger="mimetic"):
        choice = choices.choose_renderer("auto")
        choices.choose_renderer("auto")
    assert choice.name == "rays"
    assert choice.reason == "no OpenGL: egl (egl is not here), native (native is not here)"
    assert [record.message for record in caplog.records] == [f"pictures are drawn by rays: {choice.reason}"]


@pytest.mark.parametrize(
    ("variable", "taken"), [("egl", "egl"), ("osmesa", "osmesa"), ("glfw", "native"), ("off", "rays")]
)
def test_auto_follows_the_variable_that_users_of_mujoco_know(choices, monkeypatch, variable, taken):
    monkeypatch.setenv("MUJOCO_GL", variable)
    monkeypatch.setattr(choices, "failure", lambda name: "")
    assert choices.choose_renderer("auto").name == taken


def test_a_renderer_that_is_asked_for_is_never_replaced(choices, monkeypatch):
    monkeypatch.setattr(choices, "failure", lambda name: "no library")
    with pytest.raises(ConfigError, match="the renderer `egl` does not work here: no library") as caught:
        choices.choose_renderer("egl")
    assert "`rays`" in caught.value.hint


def test_a_trial_that_dies_is_a_reason_and_not_the_end(choices, monkeypatch):
    choices.failure.cache_clear()
    monkeypatch.setattr(choices, "_PROBE", "import os; os.abort()  # {platform}")
    assert choices.failure("egl").startswith("the trial ended with code")
    choices.failure.cache_clear()


def test_a_broken_graphics_library_does_not_stop_the_physics(tmp_path):
    """MuJoCo fails to be imported when MUJOCO_GL names a library that is not there; the cell must not."""
    pytest.importorskip("mujoco", reason="needs the package mujoco")
    code = (
        "import os; os.environ['MUJOCO_GL'] = 'osmesa'\n"
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from mimetic.envs.cell import Cell; from mimetic.envs.config import CellConfig\n"
        "cell = Cell(CellConfig(renderer='rays', width=16, height=16)); cell.step(cell.state())\n"
        "print(cell.picture('front').shape, os.environ['MUJOCO_GL'])"
    )
    (tmp_path / "OpenGL").mkdir()
    (tmp_path / "OpenGL" / "__init__.py").write_text("raise AttributeError('no graphics here')")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.strip() == "(16, 16, 3) osmesa", done.stderr


@pytest.mark.parametrize(
    ("variable", "code"),
    [("PYOPENGL_PLATFORM", 0), ("MUJOCO_GL", 2)],  # MuJoCo loads OpenGL by the second one as soon as it is imported
)
def test_variables_of_another_platform_are_overruled_or_told(tmp_path, variable, code):
    from mimetic.envs.render.choose import failure

    for platform in ("osmesa", "egl"):
        if problem := failure(platform):
            pytest.skip(f"needs {platform}: {problem}")
    environment = {name: text for name, text in os.environ.items() if name not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    flags = ["--repo_id=local/x", f"--root={tmp_path / 'x'}", "--task=reach", "--n_episodes=1", "--renderer=osmesa"]
    done = subprocess.run(
        [sys.executable, "-m", "mimetic", "demo", "record", *flags, "--width=32", "--height=32"],
        env={**environment, variable: "egl"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert ("put `MUJOCO_GL=osmesa` in front" in done.stderr) == (code == 2)
