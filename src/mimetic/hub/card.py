"""The model card of a pushed policy: a README.md with a head for the hub and what a reader must know.

The same facts give the same text. Whatever comes from datasets or settings is text of strangers: in the head it is
quoted, in the body it can neither end a table nor become markup.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

_ABOUT = {
    "act": (
        "ACT (Action Chunking with Transformers) looks at the cameras and the joint state once and predicts a whole "
        "chunk of future actions. A ResNet encodes the pictures, a transformer turns them into the chunk, and a "
        "variational encoder, used in training only, absorbs the differences between demonstrations."
    ),
    "keypoint": (
        "The keypoint policy is a small one of mimetic's own. A few convolutions for each camera say where things are "
        "(the softmax of a map, whose mean is a place in the picture), and two hidden layers turn these places and the "
        "joint positions into a chunk of future actions. It does not read instructions. LeRobot has no policy of this "
        "kind and cannot load it."
    ),
    "smolvla": (
        "SmolVLA is a small vision-language-action policy. A vision-language model reads the pictures and the "
        "instruction, and an action expert turns what it understood into a chunk of actions by flow matching. It "
        "follows the words of the task, so give it the instruction that it was trained with."
    ),
}
_PAPERS = {
    "act": (
        "zhao2023act",
        "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware",
        "Zhao, Tony Z. and Kumar, Vikash and Levine, Sergey and Finn, Chelsea",
        "2023",
        "2304.13705",
    ),
    "keypoint": (
        "levine2016endtoend",
        "End-to-End Training of Deep Visuomotor Policies",
        "Levine, Sergey and Finn, Chelsea and Darrell, Trevor and Abbeel, Pieter",
        "2016",
        "1504.00702",
    ),
    "smolvla": (
        "shukor2025smolvla",
        "SmolVLA: A Vision-Language-Action Model for Affordable and Efficient Robotics",
        "Shukor, Mustafa and others",
        "2025",
        "2506.01844",
    ),
}
_NOT_IN_LEROBOT = frozenset(("keypoint",))
"""Policies that LeRobot cannot load, so that their cards must not send anybody there."""
BASES = {
    "smolvla": "lerobot/smolvla_base",
    "pi0": "lerobot/pi0_base",
    "pi05": "lerobot/pi05_base",
    "pi0_fast": "lerobot/pi0fast-base",
    "xvla": "lerobot/xvla-base",
}
"""Released weights that policies of a type are usually tuned from."""
_LICENSE_NAMES = (
    "afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bigcode-openrail-m bigscience-openrail-m bsd bsd-2-clause bsd-3-clause "
    "bsd-3-clause-clear bsl-1.0 cc cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 "
    "cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 "
    "cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m ecl-2.0 "
    "epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 gemma gfdl gpl gpl-2.0 gpl-3.0 isc lgpl lgpl-2.1 lgpl-3.0 llama2 "
    "llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 openrail openrail++ "
    "osl-3.0 other pddl postgresql unknown unlicense wtfpl zlib"
)
"""Names of licences that the hub takes; any other goes there as `other` with its name beside it."""
LICENSES = frozenset(_LICENSE_NAMES.split())
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
_PLAIN = re.compile(r"[A-Za-z][\w./-]*")
_YAML_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))
_MOST_TASKS = 20
_LONGEST = 300


@dataclass(frozen=True, kw_only=True)
class Port:
    """One row of the table of inputs and outputs.

    Args:
        name: feature name.
        kind: role, such as STATE, VISUAL or ACTION.
        shape: shape of one frame.
        parts: names of its numbers, such as joints.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What the card says; everything is text or a number, ready to be shown.

    Args:
        repo_id: where the policy goes.
        policy_type: name in `--policy.type`.
        license: of the weights; None: apache-2.0.
        tags: the user's own.
        base_model: hub id of the weights that the training began with; None without.
        is_adapter: whether only an adapter is stored.
        is_average: whether these are averaged weights.
        inputs: what the policy reads.
        outputs: what it gives.
        dataset: hub id or name of the demonstrations.
        dataset_revision: branch, tag or commit; empty: unknown.
        robot: type of the robot; empty: unknown.
        episodes: trained on.
        heldout_episodes: kept for the held-out loss.
        frames: trained on.
        fps: frames a second of the recording [Hz].
        tasks: instructions in the dataset.
        training: rows of the table of the training, such as ("steps", "100000").
        losses: rows of the table of losses: name, value, step.
        versions: rows of the table of versions.
    """

    repo_id: str
    policy_type: str
    license: str | None = None
    tags: Sequence[str] = ()
    base_model: str | None = None
    is_adapter: bool = False
    is_average: bool = False
    inputs: Sequence[Port] = ()
    outputs: Sequence[Port] = ()
    dataset: str = ""
    dataset_revision: str = ""
    robot: str = ""
    episodes: int = 0
    heldout_episodes: int = 0
    frames: int = 0
    fps: float = 0
    tasks: Sequence[str] = ()
    training: Sequence[tuple[str, str]] = ()
    losses: Sequence[tuple[str, float, int]] = ()
    versions: Sequence[tuple[str, str]] = ()

    def of_average(self, repo_id: str) -> CardFacts:
        """The facts of the averaged weights of the same run, which go to a repository of their own."""
        return replace(self, repo_id=repo_id, is_average=True)


def base_of(policy_type: str, pretrained_path: str | None) -> str | None:
    """Hub id of the weights that a training began with, as far as the path tells; None: none, or not known.

    Args:
        policy_type: name in `--policy.type`.
        pretrained_path: `--policy.path` as it was given, a hub id or a folder.
    """
    if pretrained_path is None:
        return None
    if _HUB_ID.fullmatch(pretrained_path):
        return pretrained_path
    cached = re.search(r"models--([\w.-]+?)--([\w.-]+?)(?:[/\\]|$)", pretrained_path)  # a snapshot of the hub's cache
    if cached:
        return f"{cached[1]}/{cached[2]}"
    known = BASES.get(policy_type)
    parts = re.split(r"[/\\]", pretrained_path)
    return known if known is not None and known.rpartition("/")[2] in parts else None


def card_text(facts: CardFacts) -> str:
    """The README.md of a policy.

    Args:
        facts: what it says.
    """
    head = "\n".join(["---", *_front_matter(facts), "---"])
    sections = [_intro(facts), _ports(facts), _data(facts), _training(facts), _use(facts), _limits(facts), _cite(facts)]
    return head + "\n\n" + "\n\n".join(section for section in sections if section) + "\n"


def _front_matter(facts: CardFacts) -> list[str]:
    license = (facts.license or "apache-2.0").strip().lower()
    library = "mimetic" if facts.policy_type in _NOT_IN_LEROBOT else "lerobot"
    head: dict[str, Any] = {"library_name": library, "pipeline_tag": "robotics"}
    head["license"] = license if license in LICENSES else "other"
    if head["license"] == "other":
        head["license_name"] = re.sub(r"[^a-z0-9.]+", "-", license).strip("-.") or "other"
    own = {one_line(tag) for tag in facts.tags}
    head["tags"] = sorted({"robotics", library, "mimetic", one_line(facts.policy_type), *own} - {""})
    head["model_name"] = one_line(facts.policy_type)
    if _HUB_ID.fullmatch(facts.dataset):
        head["datasets"] = [facts.dataset]
    if facts.base_model is not None and _HUB_ID.fullmatch(facts.base_model):
        head["base_model"] = facts.base_model
        if facts.is_adapter:
            head["base_model_relation"] = "adapter"
    lines = []
    for name, value in head.items():
        if isinstance(value, list):
            lines += [f"{name}:", *(f"- {yaml_scalar(item)}" for item in value)]
        else:
            lines.append(f"{name}: {yaml_scalar(value)}")
    return lines


def yaml_scalar(text: str) -> str:
    """A YAML scalar that is this text whatever it holds."""
    if _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)  # a JSON string of printable characters is a YAML one


def one_line(text: str) -> str:
    """One line of printable characters, cut to a readable length."""
    text = " ".join("".join(c if c.isprintable() or c.isspace() else " " for c in text).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def harmless(text: str) -> str:
    """Text of a stranger inside Markdown: no character of it is markup."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", text)
    text = re.sub(r"^([#+=:-])", r"\\\1", text)  # what means something at the beginning of a line only
    text = re.sub(r"^(\d+)([.)])(?= |$)", r"\1\\\2", text)
    return text.replace("://", ":&#47;&#47;").replace("www.", "www&#46;")  # bare addresses become links


def as_code(text: str) -> str:
    """A name between backticks, where it is made of harmless characters."""
    return f"`{text}`" if re.fullmatch(r"[\w./-]{1,200}", text, re.ASCII) else harmless(text)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def _intro(facts: CardFacts) -> str:
    kind = as_code(facts.policy_type)
    about = _ABOUT.get(facts.policy_type, f"A policy of type {kind}: observations in, a chunk of actions out.")
    more = []
    if facts.is_average:
        more.append("These are the moving average of the weights of a training (EMA), not its last weights.")
    if facts.is_adapter:
        base = as_code(facts.base_model) if facts.base_model else "the policy that `adapter_config.json` names"
        more.append(f"Only an adapter (LoRA) is stored here; it needs {base}.")
    elif facts.base_model:
        more.append(f"The training began with the weights of {as_code(facts.base_model)}.")
    title = f"# {harmless(facts.repo_id.rpartition('/')[2])}"
    robot = f" for {harmless(facts.robot)}" if facts.robot else ""
    what = f"A robot policy of type {kind}{robot}, trained with mimetic on {as_code(facts.dataset)}."
    return "\n\n".join([title, what, about, *([" ".join(more)] if more else [])])


def _ports(facts: CardFacts) -> str:
    rows = [
        [direction, as_code(port.name), port.kind.lower(), _shape(port), _unit(port, facts)]
        for direction, ports in (("in", facts.inputs), ("out", facts.outputs))
        for port in ports
    ]
    if not rows:
        return ""
    text = "## Inputs and outputs\n\n" + _table(["", "name", "kind", "shape of a frame", "values"], rows)
    if sum(port.kind == "VISUAL" for port in facts.inputs) > 1:
        text += "\n\nThe order of the cameras is part of the policy."
    return text


def _shape(port: Port) -> str:
    return "x".join(map(str, port.shape)) or "1"


def _unit(port: Port, facts: CardFacts) -> str:
    if port.kind == "VISUAL":
        return "channels x height x width, red green blue, 0 to 1"
    names = ", ".join(map(harmless, port.parts[:16])) + (", and more" if len(port.parts) > 16 else "")
    return (f"{names}; " if names else "") + "in the dataset's units"


def _data(facts: CardFacts) -> str:
    rows = [["dataset", as_code(facts.dataset)]]
    if facts.dataset_revision:
        rows.append(["revision", as_code(facts.dataset_revision)])
    if facts.robot:
        rows.append(["robot", harmless(facts.robot)])
    held = f" (and {facts.heldout_episodes} held out)" if facts.heldout_episodes else ""
    rows += [["episodes", f"{facts.episodes}{held}"], ["frames", str(facts.frames)], ["rate", f"{facts.fps:g} Hz"]]
    text = "## Training data\n\n" + _table(["", ""], rows)
    tasks = sorted({one_line(task) for task in facts.tasks} - {""})
    if tasks:
        text += "\n\nTasks:\n\n" + "\n".join(f"- {harmless(task)}" for task in tasks[:_MOST_TASKS])
        if len(tasks) > _MOST_TASKS:
            text += f"\n- and {len(tasks) - _MOST_TASKS} more"
    return text


def _training(facts: CardFacts) -> str:
    text = "## Training\n\n" + _table(["", ""], [[harmless(name), harmless(value)] for name, value in facts.training])
    if facts.losses:
        rows = [[harmless(name), f"{value:.6g}", str(step)] for name, value, step in facts.losses]
        text += "\n\n" + _table(["loss", "value", "step"], rows)
    versions = [[harmless(name), harmless(value)] for name, value in facts.versions]
    return text + "\n\n" + _table(["version", ""], versions)


def _use(facts: CardFacts) -> str:
    policy, dataset = facts.repo_id, shlex.quote(one_line(facts.dataset)).replace("`", "")
    ours = f"""## How to use

With mimetic:

```sh
mimetic eval --policy.path={policy} --dataset.repo_id={dataset}
mimetic train --policy.path={policy} --dataset.repo_id=YOU/YOUR_DATASET
```"""
    if facts.policy_type in _NOT_IN_LEROBOT:
        return ours
    return f"""{ours}

With LeRobot:

```sh
lerobot-train --policy.path={policy} --dataset.repo_id=YOU/YOUR_DATASET --policy.repo_id=YOU/YOUR_POLICY
lerobot-eval --policy.path={policy} --env.type=YOUR_ENVIRONMENT
```"""


def _limits(facts: CardFacts) -> str:
    return f"""## Limits

- It has seen {facts.episodes} episodes. Other places, lights, objects, cameras or robots are outside of them.
- Losses compare actions with recorded ones. They are no success rate: that takes trials on the robot.
- It has no notion of safety. Put limits between the policy and the motors, and stay near the stop button."""


def _cite(facts: CardFacts) -> str:
    paper = _PAPERS.get(facts.policy_type)
    if paper is None:
        return ""
    key, title, authors, year, arxiv = paper
    return f"""## Citation

```bibtex
@article{{{key},
  title = {{{title}}},
  author = {{{authors}}},
  journal = {{arXiv preprint arXiv:{arxiv}}},
  year = {{{year}}}
}}
```"""


def losses_of(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, float, int]]:
    """Last training loss, last and best held-out loss of a run, each with its step.

    Args:
        records: lines of `metrics.jsonl` in their order; what a resumed run went back behind does not count.
    """
    train: list[tuple[float, int]] = []
    heldout: list[tuple[float, int]] = []
    for record in records:
        step = record.get("steps")
        if not isinstance(step, (int, float)):
            continue
        if record.get("kind") == "resume":
            train = [item for item in train if item[1] <= step]
            heldout = [item for item in heldout if item[1] <= step]
        for kind, name, into in (("train", "loss", train), ("heldout", "eval_loss", heldout)):
            value = record.get(name)
            if record.get("kind") == kind and isinstance(value, (int, float)):
                into.append((float(value), int(step)))
    rows = [("training, last window", *train[-1])] if train else []
    if heldout:
        rows += [("held out, last", *heldout[-1]), ("held out, best", *min(heldout))]
    return rows
