"""A fresh run with the reference's seed has its initial weights, its order of frames and its random stream, so its log lines too.

Compared: every number of LeRobot 0.6.1's log lines (three decimals) except times and our own memory. Its held-out loss is another mean (spec 14), so
`eval_loss` is not compared here.
"""

import re

import pytest

from mimetic.config.parse import parse
from mimetic.testing.tiny import TINY_ACT
from mimetic.train.config import TrainConfig
from mimetic.train.run import train

TINY = [
    *TINY_ACT,
    "--dataset.repo_id=local/tiny_vec",
    "--batch_size=4",
    "--num_workers=0",
    "--steps=6",
    "--save_checkpoint=false",
]
RUNS = {
    "run_preset": ["--log_freq=1"],
    "run_sched": [
        "--policy.use_vae=false",
        "--policy.dropout=0",
        "--use_policy_training_preset=false",
        "--optimizer.type=adamw",
        "--optimizer.lr=1e-3",
        "--optimizer.weight_decay=0.01",
        "--optimizer.grad_clip_norm=1.0",
        "--scheduler.type=cosine_decay_with_warmup",
        "--scheduler.num_warmup_steps=4",
        "--scheduler.num_decay_steps=20",
        "--scheduler.peak_lr=1e-3",
        "--scheduler.decay_lr=1e-4",
        "--dataset.eval_split=0.3",
        "--log_freq=2",
    ],
}
TIMES = ("updt_s", "data_s", "smp/s", "prep_s", "step_s", "ram_gb", "lim")


def numbers(text):
    """The log lines as lists of (key, text), without times."""
    lines = re.findall(r"\bstep:\d+ smpl:.*", text)
    return [[pair for pair in (item.split(":") for item in line.split()) if pair[0] not in TIMES] for line in lines]


@pytest.mark.parametrize("name", RUNS)
def test_the_log_lines_of_a_fresh_run_are_the_references(fixtures, tmp_path, name, caplog):
    root = fixtures / "training" / "dataset_tiny_vec"
    flags = [*TINY, *RUNS[name], f"--dataset.root={root}", f"--output_dir={tmp_path / 'run'}"]
    with caplog.at_level("INFO", logger="mimetic"):
        train(parse(TrainConfig, flags, prog="mimetic train").value)
    expected = numbers((fixtures / "training" / "logs" / f"{name}.log").read_text())
    ours = numbers(caplog.text)
    assert len(ours) == len(expected) > 0
    for mine, reference in zip(ours, expected, strict=True):
        assert [key for key, _ in mine] == [key for key, _ in reference]
        for (key, value), (_, wanted) in zip(mine, reference, strict=True):
            if "." in wanted and "e" not in wanted:
                # one unit of the last printed decimal: another processor may round a tie the other way
                assert float(value) == pytest.approx(float(wanted), abs=1.5e-3), key
            else:
                assert value == wanted, key


def test_messages_of_the_start_are_the_references(fixtures, tmp_path, caplog):
    root = fixtures / "training" / "dataset_tiny_vec"
    flags = [*TINY, *RUNS["run_sched"], f"--dataset.root={root}", f"--output_dir={tmp_path / 'run_sched'}"]
    with caplog.at_level("INFO", logger="mimetic"):
        train(parse(TrainConfig, flags, prog="mimetic train").value)
    log = (fixtures / "training" / "logs" / "run_sched.log").read_text()
    messages = [line.split(" ", 4)[4] for line in log.splitlines() if re.match(r"(INFO|.*INFO) 2026", line)]
    wanted = [
        message
        for message in messages
        if message.startswith(("Creating", "Train/eval split", "Auto-scaling", "cfg.steps", "dataset.", "Effective"))
        or message.startswith(("num_", "Start offline", "End of training"))
    ]
    ours = [record.getMessage() for record in caplog.records]
    assert len(wanted) >= 10
    assert [message for message in wanted if message not in ours] == []
