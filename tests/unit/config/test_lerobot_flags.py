"""Every flag of LeRobot: ours with the same name, type and default, or answered as LeRobot's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import pytest

from mimetic.config.codec import encode
from mimetic.config.lerobot_flags import NEXT, OF_CHOICES, is_neutral, owners
from mimetic.config.parse import Parsed
from mimetic.config.schema import Setting, choices_of, find, type_text, walk
from mimetic.errors import ConfigError
from mimetic.evaluate.config import EvalConfig
from mimetic.policies.config import PolicyConfig
from mimetic.train.config import TrainConfig

FLAGS = Path(__file__).parents[2] / "fixtures/flags"

# Name -> our type and our default, None where equal; each is a difference on purpose.
DIFFERENT: dict[str, tuple[str | None, Any]] = {
    "dataset.video_backend": (None, "auto"),  # decided by what works and is exact on this machine, with a reason
    "policy.pretrained_path": ("str | null", None),  # hub ids are no paths
    "policy.load_vlm_weights": (None, True),  # false freezes a vision-language model with random weights
    "policy.resize_imgs_with_padding": ("tuple[int, int] | null", None),  # null is read, and refused with a reason
    "policy.optimizer_grad_clip_norm": ("int | float", None),  # the default is a whole number there too
    "policy.rtc_config.prefix_attention_schedule": ("str", None),  # one of the same four words
    "accelerator.activation_checkpointing.mode": ("str", None),  # one of the same two words
}


@dataclass(frozen=True)
class Line:
    """One recorded flag."""

    kind: str
    choice: str
    name: str
    type: str
    default: Any


def read(name: str, sign: str = "") -> Iterator[Line]:
    for line in (FLAGS / name).read_text().splitlines():
        if line.startswith("#") or (sign and not line.startswith(sign)):
            continue
        found = re.fullmatch(r"(?:\[(\w+)=([^\]]+)\] )?--(\S+) \| (.+) \| (\S.*)", line.removeprefix(sign).strip())
        assert found is not None, line
        text = found[5]
        default = MISSING if "(required)" in text or "(group" in text else json.loads(text)
        yield Line(found[1] or "", found[2] or "", found[3], found[4], default)


OURS = {
    "act": "policy",
    "smolvla": "policy",
    "adam": "optimizer",
    "adamw": "optimizer",
    "sgd": "optimizer",
    "constant_with_warmup": "scheduler",
    "cosine_annealing_with_warmup": "scheduler",
    "cosine_decay_with_warmup": "scheduler",
    "diffuser": "scheduler",
    "vqbet": "scheduler",
    "aloha": "env",
    "libero": "env",
    "metaworld": "env",
    "pusht": "env",
}


def is_ours(line: Line) -> bool:
    return not line.kind or OURS.get(line.choice) == line.kind


def setting_of(cls: type, line: Line) -> Setting | None:
    chosen = {
        choice.name: choice.catalog.load_config(line.choice) for choice in choices_of(cls) if choice.name == line.kind
    }
    return find(cls, line.name, chosen)


def check(cls: type, line: Line) -> None:
    name = line.name.removesuffix(".type") if line.type.startswith("choice{") else line.name
    setting = setting_of(cls, Line(line.kind, line.choice, name, line.type, line.default))
    assert setting is not None, f"{line.name} is missing"
    if line.type.startswith("choice{"):
        assert setting.node == "choice"
        known = set(line.type[len("choice{") : -1].split(","))
        assert known <= set(setting.catalog)
        return
    if line.type.startswith("config group"):
        assert setting.node == "group"
        assert setting.is_optional == line.type.endswith("null")
        return
    our_type, our_default = DIFFERENT.get(line.name, (None, None))
    assert type_text(setting.hint).replace("any | null", "any") == (our_type or line.type)
    default = setting.default()
    expected = line.default if our_default is None else our_default
    assert (default if default is MISSING else encode(default)) == expected
    assert type(encode(default)) is type(expected)


TRAIN = list(read("flags_train_061.txt"))
EVAL = list(read("flags_eval_061.txt"))
AFTER = list(read("flags_train_after_061.txt", "+"))


def ids(line: Line) -> str:
    return f"{line.choice}:{line.name}" if line.choice else line.name


def test_the_lists_are_complete() -> None:
    assert len(TRAIN) > 1000
    assert len(EVAL) > 900
    assert len([line for line in TRAIN if is_ours(line)]) > 110


@pytest.mark.parametrize("line", [line for line in TRAIN if is_ours(line)], ids=ids)
def test_train_flag_is_equal(line: Line) -> None:
    check(TrainConfig, line)


@pytest.mark.parametrize("line", [line for line in EVAL if is_ours(line)], ids=ids)
def test_eval_flag_is_equal(line: Line) -> None:
    check(EvalConfig, line)


def test_every_other_flag_is_answered_as_lerobots() -> None:
    """No flag that LeRobot has is called unknown."""
    silent = [
        ids(line)
        for line in [*TRAIN, *EVAL, *AFTER]
        if not is_ours(line) and setting_of_common(line) is None and owners(line.name) is None
    ]
    assert silent == []


def setting_of_common(line: Line) -> Setting | None:
    """Fields that every policy has exist in ours too."""
    return find(TrainConfig, line.name, {"policy": PolicyConfig})


@pytest.mark.parametrize("line", [line for line in AFTER if not line.kind], ids=ids)
def test_newer_flag_is_ours_or_known_with_its_default(line: Line) -> None:
    if find(TrainConfig, line.name.removesuffix(".type"), {}) is not None:
        check(TrainConfig, line)
    elif line.type != "config group":
        assert is_neutral(line.name, line.default)
        assert NEXT[line.name] == line.default
    else:
        assert owners(line.name) == []


def test_names_that_are_listed_as_missing_are_not_ours() -> None:
    """When a policy, an environment or a group is built, its entry must leave the table."""
    for name in NEXT:
        assert find(TrainConfig, name, {}) is None, f"{name} is ours now: remove it from lerobot_flags.NEXT"
    for choice in choices_of(TrainConfig):
        built = set(choice.catalog.available()) & set(OF_CHOICES.get(choice.name, {}))
        assert not built, f"{built} are ours now: remove them from lerobot_flags.OF_CHOICES"


@pytest.mark.parametrize(
    "flag",
    [
        "checkpoint_format",
        "accelerator.fsdp.cpu_offload",
        "parallelism.dp_shard",
        "accelerator.ddp.static_graph",
        "env.hub_path",
        "env.processor.gripper.use_gripper",
        "policy.down_dims",
        "reward_model.type",
    ],
)
def test_a_flag_of_lerobot_is_not_called_unknown(trained: Callable[..., Parsed], flag: str) -> None:
    with pytest.raises(ConfigError, match=rf"flag `--{flag}` is LeRobot's and not part of mimetic yet"):
        trained(f"--{flag}=1")


# Reading back: each flag is set to another value than its default, and found at its place.

EXAMPLES: dict[str, list[tuple[str, Any]]] = {
    "bool": [("true", True), ("false", False)],
    "int": [("7", 7), ("8", 8)],
    "float": [("0.25", 0.25), ("3e-2", 0.03)],
    "str": [("some text", "some text")],
    "Path": [("some/path", Path("some/path"))],
    "list[int]": [("[1,2]", [1, 2])],
    "list[str]": [("[a, b]", ["a", "b"])],
    "list[str] | str": [("[a, b]", ["a", "b"])],
    "tuple[float, float]": [("[0.5,0.25]", (0.5, 0.25))],
    "tuple[int, int]": [("[3,4]", (3, 4))],
    "int | float": [("0.25", 0.25)],
    "dict[str, str]": [("{a: b}", {"a": "b"})],
    "dict": [("{a: 1}", {"a": 1})],
    "dict[str, NormalizationMode]": [("{STATE: IDENTITY}", {"STATE": "IDENTITY"})],
    "dict[str, PolicyFeature]": [("{s: {type: STATE, shape: [3]}}", {"s": {"type": "STATE", "shape": [3]}})],
    "dict[str, ImageTransformConfig]": [
        ("{x: {weight: 2.0}}", {"x": {"weight": 2.0, "type": "Identity", "kwargs": {}}})
    ],
}


def non_default(setting: Setting) -> tuple[str, Any]:
    if setting.choices:
        word = next((word for word in setting.choices if word != setting.default()), setting.choices[0])
        return word, word
    for text, value in EXAMPLES[type_text(setting.hint).removesuffix(" | null")]:
        if value != setting.default():
            return text, value
    raise AssertionError(setting)


def every_setting() -> Iterator[tuple[str, str, Setting]]:
    for choice in choices_of(TrainConfig):
        for name in choice.catalog.available():
            for setting in walk(choice.catalog.load_config(name), {}, choice.name):
                if setting.node == "leaf":
                    yield f"{choice.name}.type={name}", setting.name, setting
    for setting in walk(TrainConfig, {}):
        if setting.node == "leaf" and setting.is_flag:
            yield "", setting.name, setting


@pytest.mark.parametrize(
    ("choice", "name", "setting"), list(every_setting()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_set_and_read_back(train: Callable[..., Parsed], choice: str, name: str, setting: Setting) -> None:
    text, value = non_default(setting)
    argv = [f"--{name}={text}"]
    if choice:
        argv.append(f"--{choice}")
        argv += [f"--{item.name}=1" for item in required(choice) if item.name != name]
    if name != "dataset.repo_id":
        argv.append("--dataset.repo_id=x")
    parsed = train(*argv)
    found: Any = parsed.value
    for part in name.split("."):
        found = getattr(found, part)
    assert encode(found) == encode(value)
    assert parsed.origins[name] == "flag"
    others = {flag for flag, origin in parsed.origins.items() if origin == "flag"}
    given = {word[2:].partition("=")[0] for word in argv}
    assert others == given


def required(choice: str) -> list[Setting]:
    name, _, type_name = choice.partition(".type=")
    setting = next(item for item in choices_of(TrainConfig) if item.name == name)
    return [item for item in walk(setting.catalog.load_config(type_name), {}, name) if item.is_required]
