"""The same seed gives the same trajectories and the same pictures, by each renderer, in another interpreter too."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import av
import pytest

from mimetic.data.features import policy_features
from mimetic.envs.config import CellConfig
from mimetic.evaluate.rollout.cell import cell_features
from mimetic.evaluate.rollout.journal import VOLATILE
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.checkpoint import save_pretrained
from mimetic.testing.untrained import untrained

pytest.importorskip("mujoco", reason="needs the package mujoco")

SIZE = 32


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A small ACT with random weights, whose actions move the arm visibly."""
    features = policy_features(cell_features(CellConfig(width=SIZE, height=SIZE)))
    sizes = {"chunk_size": 4, "n_action_steps": 2, "dim_model": 16, "n_heads": 2, "dim_feedforward": 16}
    policy, *pipelines = untrained(ACTConfig, features, n_encoder_layers=1, pretrained_backbone_weights=None, **sizes)
    folder = tmp_path_factory.mktemp("act")
    save_pretrained(policy, folder, *pipelines)
    return folder


def evaluate(checkpoint, output, renderer, *flags):
    command = [
        *(sys.executable, "-m", "mimetic", "eval", f"--policy.path={checkpoint}", f"--output_dir={output}"),
        *("--env.type=so101_cell", "--env.task=pick_place", "--env.split=held_out,shifted_light", "--report=false"),
        *("--env.episode_length=8", f"--env.width={SIZE}", f"--env.height={SIZE}", f"--env.renderer={renderer}"),
        *("--eval.n_episodes=3", *flags),
    ]
    # Another seed of Python's hashes: nothing may follow from the order of a set.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(len(flags))}
    for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM"):  # set in this process when another test draws by OpenGL
        environment.pop(name, None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (output / "episodes.jsonl").read_text().splitlines()]
    films = {}
    for path in output.glob("videos/**/*.mp4"):
        with av.open(str(path)) as container:
            frames = [frame.to_ndarray(format="rgb24").tobytes() for frame in container.decode(video=0)]
        films[path.relative_to(output)] = frames
    strips = {path.relative_to(output): path.read_bytes() for path in output.glob("strips/**/*.jpg")}
    return [{key: value for key, value in row.items() if key not in VOLATILE} for row in rows], films, strips


@pytest.mark.parametrize("renderer", ["rays", "egl", "osmesa"])
def test_an_evaluation_repeats_to_the_pixel_whatever_runs_beside_it(checkpoint, tmp_path, renderer):
    from mimetic.envs.render.choose import failure

    if renderer != "rays" and failure(renderer):
        pytest.skip(f"needs OpenGL by {renderer}")
    alone = ("--eval.batch_size=1", "--eval.use_async_envs=false")
    rows, films, strips = evaluate(checkpoint, tmp_path / "alone", renderer, *alone)
    again = evaluate(checkpoint, tmp_path / "spread", renderer, "--eval.batch_size=3")
    assert len(rows) == len(films) == len(strips) == 6
    assert len({frame for film in films.values() for frame in film}) > 6  # something moves
    assert (rows, films, strips) == again
