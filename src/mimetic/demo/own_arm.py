"""The commands of the demo as a user types them for their own arm."""

from __future__ import annotations

import shlex

from mimetic.demo.recipes import Recipe

DATASET = "me/my_task"
"""Name that stands for a user's own dataset."""
RUN = "outputs/my_task"


def record_command(repo_id: str, n_episodes: int, instruction: str) -> str:
    """Record on a real SO-101, by LeRobot, whose recordings are read as they are.

    Args:
        repo_id: name of the dataset.
        n_episodes: how many episodes.
        instruction: the task in words.
    """
    cameras = (
        "{front: {type: opencv, index_or_path: 0, width: 640, height: 480, fps: 30}, "
        "wrist: {type: opencv, index_or_path: 1, width: 640, height: 480, fps: 30}}"
    )
    return (
        "lerobot-record --robot.type=so101_follower --robot.port=/dev/ttyACM0 --robot.id=follower "
        f"--robot.cameras={shlex.quote(cameras)} --teleop.type=so101_leader --teleop.port=/dev/ttyACM1 "
        f"--teleop.id=leader --dataset.repo_id={repo_id} --dataset.num_episodes={n_episodes} "
        f"--dataset.single_task={shlex.quote(instruction)}"
    )


def check_command(recipe: Recipe) -> tuple[str, ...]:
    """Words after `mimetic` that check the recording."""
    return ("dataset", "check", f"--repo_id={DATASET}", f"--policy.type={recipe.type_name}", "--html=check.html")


def probe_command(recipe: Recipe, steps: int) -> tuple[str, ...]:
    """Words after `mimetic` that show seconds a step and memory, in the log's lines.

    Args:
        recipe: what is trained.
        steps: of the probe.
    """
    flags = (f"--steps={steps}", f"--log_freq={max(1, steps // 4)}", "--policy.push_to_hub=false")
    return ("train", *recipe.policy, f"--dataset.repo_id={DATASET}", *recipe.training, *flags)


def train_command(recipe: Recipe, steps: int) -> tuple[str, ...]:
    """Words after `mimetic` that train, with a tenth of the recording held out.

    Args:
        recipe: what is trained.
        steps: of the training.
    """
    return (
        *("train", *recipe.policy, f"--dataset.repo_id={DATASET}", "--dataset.eval_split=0.1", *recipe.training),
        *(f"--steps={steps}", f"--eval_steps={max(1, steps // 10)}", "--policy.push_to_hub=false"),
        f"--output_dir={RUN}",
    )


def eval_command() -> tuple[str, ...]:
    """Words after `mimetic` that compare the policy with the episodes that were held out."""
    return ("eval", f"--policy.path={RUN}", f"--dataset.repo_id={DATASET}", "--dataset.eval_split=0.1")
