"""Averaged weights on disk: what a checkpoint holds, resuming from it, and what is refused."""

from __future__ import annotations

import json
import pickle
import zipfile
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from mimetic.errors import CheckpointError, KeyMismatch
from mimetic.optim.build import make_optimizer
from mimetic.optim.config import AdamWConfig
from mimetic.policies.adapter_config import AdapterConfig
from mimetic.policies.adapters import attach, fingerprint
from mimetic.policies.build import make_policy
from mimetic.policies.checkpoint import load_pretrained, load_weights, save_pretrained
from mimetic.testing.smolvla import spread_weights, tiny_smolvla_batch, tiny_smolvla_config, write_tiny_vlm
from mimetic.train.ema import ema_values, load_ema, make_ema, save_ema
from mimetic.train.ema_config import EmaConfig
from mimetic.train.state import load_optimizer, save_optimizer

ON = EmaConfig(enable=True)


@pytest.fixture(scope="module")
def act(fixtures):
    return fixtures / "act/state_env/checkpoint"


def training(folder, config=ON, *, peft=False):
    """A loaded ACT with an average, an optimiser, and a frozen layer."""
    loaded = load_pretrained(folder)
    policy = loaded.policy
    if peft:
        adapter = AdapterConfig(
            target_modules=("linear1",),
            r=2,
            lora_alpha=4,
            base_model_name_or_path=str(folder),
            base_fingerprint=fingerprint(folder / "model.safetensors"),
        )
        torch.manual_seed(0)
        attach(policy, adapter)
    else:
        policy.model.action_head.requires_grad_(False)
    optimizer = make_optimizer(AdamWConfig(lr=1e-2), list(policy.parameters()))
    return SimpleNamespace(
        policy=policy,
        before=loaded.preprocessor,
        after=loaded.postprocessor,
        optimizer=optimizer,
        ema=make_ema(config, policy),
    )


def train(run, steps):
    """Updates with gradients that depend on the weights and the step only."""
    for step in steps:
        for number, parameter in enumerate(p for p in run.policy.parameters() if p.requires_grad):
            parameter.grad = parameter.detach() * 0.1 + torch.sin(torch.tensor(float(step + number)))
        run.optimizer.step()
        run.optimizer.zero_grad()
        run.ema.update()


def save(run, folder):
    """What a checkpoint holds of weights, optimiser and average."""
    (folder / "training_state").mkdir(parents=True)
    save_pretrained(run.policy, folder / "pretrained_model", run.before, run.after)
    for name in ("train_config.json", "mimetic.json"):
        (folder / "pretrained_model" / name).write_text(f'{{"of": "{name}"}}')
    save_optimizer(folder / "training_state", run.optimizer)
    save_ema(folder, run.ema, run.policy, run.before, run.after)
    return folder


@pytest.fixture
def state(act, tmp_path):
    """The `training_state` folder after three updates."""
    run = training(act)
    train(run, range(3))
    return save(run, tmp_path / "000003") / "training_state"


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


# Settings


def test_nothing_is_averaged_unless_asked(act):
    assert make_ema(EmaConfig(), load_pretrained(act).policy) is None


def test_the_log_says_what_is_averaged_and_how(act, caplog):
    with caplog.at_level("INFO", logger="mimetic"):
        ema = training(act, EmaConfig(enable=True, update_after_step=7, max_decay=0.99)).ema
        training(act, EmaConfig(enable=True, decay=0.95, max_decay=0.5))
    assert f"averaged weights: {len(ema.averaged)} tensors, 0.2 MB; decay 1 - (1 + updates / 1) ^ -0.75" in caplog.text
    assert "from 0 to 0.99, after 7 updates" in caplog.text
    assert "; decay 0.95\n" in caplog.text


def test_settings_arrive(act):
    run = training(
        act, EmaConfig(enable=True, update_after_step=1, inv_gamma=2.0, power=1.0, min_decay=0.2, max_decay=0.4)
    )
    assert [run.ema.schedule.at(update) for update in (2, 3, 4, 5)] == pytest.approx([0, 1 / 3, 0.4, 0.4])
    constant = training(act, EmaConfig(enable=True, decay=0.8, max_decay=0.5)).ema.schedule
    assert [constant.at(update) for update in (1, 2, 3)] == [0, 0.8, 0.8]


def test_values_for_the_log(act):
    run = training(act)
    train(run, range(4))
    assert ema_values(run.ema) == {"ema/decay": 1 - 4**-0.75, "ema/step": 4}


# Files


def test_the_files_of_a_checkpoint(act, tmp_path):
    run = training(act, EmaConfig(enable=True, update_after_step=1, power=0.5))
    train(run, range(3))
    own = {name: tensor.clone() for name, tensor in run.policy.state_dict().items()}
    folder = save(run, tmp_path / "000003")
    assert_same(run.policy.state_dict(), own)
    state = folder / "training_state"
    assert (state / "ema_state.json").read_text() == json.dumps(
        {
            "decay": 0.9999,
            "min_decay": 0.0,
            "optimization_step": 3,
            "update_after_step": 1,
            "use_ema_warmup": True,
            "inv_gamma": 1.0,
            "power": 0.5,
        },
        indent=4,
    )
    stored = load_file(state / "ema_state.safetensors")
    assert_same(stored, run.ema.averaged)
    assert stored.keys() == {name for name, p in run.policy.named_parameters() if p.requires_grad}
    assert sorted(path.name for path in state.iterdir()) == [
        "ema_state.json",
        "ema_state.safetensors",
        "optimizer_param_groups.json",
        "optimizer_state.safetensors",
    ]


def test_the_averaged_policy_is_a_folder_like_any_other(act, tmp_path):
    run = training(act)
    train(run, range(3))
    folder = save(run, tmp_path / "000003")
    names = [sorted(p.name for p in (folder / kind).iterdir()) for kind in ("pretrained_model", "pretrained_model_ema")]
    assert names[0] == names[1]
    assert (folder / "pretrained_model_ema" / "train_config.json").read_text() == '{"of": "train_config.json"}'
    averaged = load_pretrained(folder / "pretrained_model_ema").policy.state_dict()
    own = load_pretrained(folder / "pretrained_model").policy.state_dict()
    assert_same(averaged, {**own, **run.ema.averaged})
    assert any(not torch.equal(averaged[name], own[name]) for name in own)


def test_an_adapter_is_averaged_and_stored_as_one(act, tmp_path):
    run = training(act, peft=True)
    train(run, range(3))
    assert all(".lora_" in name for name in run.ema.averaged)
    folder = save(run, tmp_path / "000003")
    assert not (folder / "pretrained_model_ema" / "model.safetensors").exists()
    loaded = load_pretrained(folder / "pretrained_model_ema").policy
    assert_same({name: loaded.get_parameter(name) for name in run.ema.averaged}, run.ema.averaged)


@pytest.mark.parametrize(("step", "peft"), [(0, False), (1, False), (2, False), (3, False), (5, False), (3, True)])
def test_resuming_at_any_step_equals_not_stopping(act, tmp_path, step, peft):
    config = EmaConfig(enable=True, update_after_step=2)
    whole = training(act, config, peft=peft)
    train(whole, range(6))
    first = training(act, config, peft=peft)
    train(first, range(step))
    folder = save(first, tmp_path / "stopped")
    second = training(act, config, peft=peft)
    load_weights(second.policy, folder / "pretrained_model") if not peft else load_adapter_weights(second, folder)
    load_optimizer(folder / "training_state", second.optimizer)
    load_ema(folder / "training_state", second.ema, second.policy)
    train(second, range(step, 6))
    files = [save(run, tmp_path / name) for run, name in ((whole, "one"), (second, "two"))]
    contents = [
        {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()} for folder in files
    ]
    assert contents[0] == contents[1]


def load_adapter_weights(run, folder):
    """Copy the trained tensors of a saved adapter into a policy that has one already."""
    stored = load_pretrained(folder / "pretrained_model").policy
    with torch.no_grad():
        for name, parameter in run.policy.named_parameters():
            parameter.copy_(stored.get_parameter(name))


# Resuming from what does not fit


def test_without_a_stored_average_it_starts_again_from_the_weights_with_a_warning(act, tmp_path, caplog):
    run = training(act)
    load_ema(tmp_path, run.ema, run.policy)
    assert "holds no averaged weights; the average starts again from the current weights" in caplog.text
    assert run.ema.updates == 0
    assert_same(run.ema.averaged, {name: run.policy.get_parameter(name) for name in run.ema.averaged})


def test_settings_of_the_run_win_and_the_log_says_so(act, state, caplog):
    run = training(act, EmaConfig(enable=True, power=0.5, decay=0.9))
    with caplog.at_level("INFO", logger="mimetic"):
        load_ema(state, run.ema, run.policy)
    assert "settings change from the next update on: decay 0.9999 -> 0.9, min_decay 0.0 -> 0.9, power 0.75 -> 0.5" in (
        caplog.text
    )
    assert "averaged weights: going on after 3 updates" in caplog.text
    assert run.ema.decay == 0.9


def refuse(act, state, error, message):
    """Loading fails with one error that names what to do, and leaves the fresh average alone."""
    run = training(act)
    with pytest.raises(error, match=message) as caught:
        load_ema(state, run.ema, run.policy)
    assert caught.value.hint
    assert not caught.value.message.endswith(".")
    assert run.ema.updates == 0
    assert_same(run.ema.averaged, {name: run.policy.get_parameter(name) for name in run.ema.averaged})
    return caught.value


@pytest.mark.parametrize("name", ["ema_state.json", "ema_state.safetensors"])
@pytest.mark.parametrize("damage", [b"", b"[]", b"3", bytes(range(256)), None], ids=["empty", "list", "3", "x", "half"])
def test_a_damaged_file_is_named(act, state, name, damage):
    content = (state / name).read_bytes()
    (state / name).write_bytes(content[: len(content) // 2] if damage is None else damage)
    run = training(act)
    with pytest.raises(CheckpointError, match=name):
        load_ema(state, run.ema, run.policy)


@pytest.mark.parametrize(
    "names", [["ema_state.json", "ema_state.safetensors"], ["ema_state.safetensors", "ema_state.json"]]
)
def test_one_file_without_the_other_is_refused(act, state, names):
    (state / names[0]).unlink()
    refuse(act, state, CheckpointError, rf"{names[0]}` is missing, and {names[1]} is there")


@pytest.mark.parametrize("count", [-1, 2.0, "3", True, None])
def test_a_count_that_is_none_is_refused(act, state, count):
    path = state / "ema_state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"optimization_step": count}))
    refuse(act, state, CheckpointError, f"`optimization_step` is {count!r}, not a number of updates")


def change_tensors(state, change):
    path = state / "ema_state.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def first_name(act):
    return next(iter(training(act).ema.averaged))


def test_names_that_do_not_fit_are_listed(act, state):
    name = first_name(act)

    def rename(tensors):
        tensors["colour"] = tensors.pop(name)

    change_tensors(state, rename)
    error = refuse(act, state, KeyMismatch, "is the average of other weights than those that are trained")
    assert f"missing 1: `{name}`; unexpected 1: `colour`" in error.message
    assert "--ema.enable=false" in error.hint


def test_many_names_are_shortened(act, state):
    change_tensors(state, lambda tensors: [tensors.pop(name) for name in sorted(tensors)[:8]])
    assert "missing 8: `" in (text := refuse(act, state, KeyMismatch, "and 3 more").message)
    assert text.count("`") == 2 * (5 + 1)


def test_other_trained_parts_are_other_names(act, state):
    run = training(act)
    run.policy.requires_grad_(True)
    run.ema = make_ema(ON, run.policy)
    with pytest.raises(KeyMismatch, match=r"missing 2: `model.action_head.weight`, `model.action_head.bias`"):
        load_ema(state, run.ema, run.policy)


def test_a_shape_that_does_not_fit_is_named(act, state):
    name = first_name(act)
    shape = tuple(training(act).ema.averaged[name].shape)
    change_tensors(state, lambda tensors: tensors.update({name: torch.zeros(1, 2, 3)}))
    error = refuse(act, state, KeyMismatch, "other shape 1")
    assert f"`{name}` is (1, 2, 3) and should be {shape}" in error.message


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(act, state, bad):
    change_tensors(state, lambda tensors: tensors[first_name(act)].view(-1)[-1:].fill_(bad))
    refuse(act, state, CheckpointError, f"`{first_name(act)}` holds NaN or infinity")


def test_whole_numbers_are_refused(act, state):
    change_tensors(state, lambda tensors: tensors.update({first_name(act): tensors[first_name(act)].long()}))
    refuse(act, state, CheckpointError, f"`{first_name(act)}` is I64")


# The newer LeRobot's file


def described(run, **changes):
    """What it stores: the shadow of every parameter, in order, and the settings."""
    shadows = [run.ema.shadow[name].detach().clone() for name, _ in run.policy.named_parameters()]
    settings = {
        "decay": 0.9999,
        "min_decay": 0.0,
        "optimization_step": 3,
        "update_after_step": 0,
        "use_ema_warmup": True,
        "inv_gamma": 1.0,
        "power": 0.75,
    }
    return {**settings, "shadow_params": shadows, **changes}


@pytest.fixture
def trained(act):
    run = training(act)
    train(run, range(3))
    return run


def test_it_is_read_in_the_order_of_the_parameters(act, tmp_path, trained):
    torch.save(described(trained), tmp_path / "ema_state.pt")
    run = training(act)
    load_ema(tmp_path, run.ema, run.policy)
    assert run.ema.updates == 3
    assert_same(run.ema.averaged, trained.ema.averaged)
    train(run, range(3, 4))
    assert run.ema.decay == 1 - 4**-0.75


def test_narrow_shadows_are_widened(act, tmp_path, trained):
    content = described(trained)
    content["shadow_params"] = [shadow.bfloat16() for shadow in content["shadow_params"]]
    torch.save(content, tmp_path / "ema_state.pt")
    run = training(act)
    load_ema(tmp_path, run.ema, run.policy)
    assert_same(run.ema.averaged, {name: t.bfloat16().float() for name, t in trained.ema.averaged.items()})
    assert {tensor.dtype for tensor in run.ema.averaged.values()} == {torch.float32}


def test_beside_our_files_it_is_the_newer_one(act, state, trained, caplog):
    train(trained, range(3, 5))
    torch.save(described(trained, optimization_step=5), state / "ema_state.pt")
    run = training(act)
    load_ema(state, run.ema, run.policy)
    assert "ema_state.pt was written by another program after ema_state.safetensors; it is taken" in caplog.text
    assert run.ema.updates == 5
    assert_same(run.ema.averaged, trained.ema.averaged)


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("place", ["beside", "inside", "instead"])
def test_code_in_it_is_not_run(act, tmp_path, trained, place):
    trap = Payload(tmp_path / "it ran")
    content = described(trained)
    torch.save(
        {"beside": {**content, "x": trap}, "inside": {**content, "shadow_params": [trap]}, "instead": trap}[place],
        tmp_path / "ema_state.pt",
    )
    error = refuse(act, tmp_path, CheckpointError, "names Python objects besides tensors and numbers")
    assert "weights_only" not in error.message + error.hint
    assert not (tmp_path / "it ran").exists()


def test_formats_that_old_torch_reads_without_restriction_are_not_touched(act, tmp_path, trained, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch.load was called"))
    trap = Payload(tmp_path / "it ran")
    torch.save({**described(trained), "x": trap}, tmp_path / "ema_state.pt", _use_new_zipfile_serialization=False)
    refuse(act, tmp_path, CheckpointError, "it is no archive as torch writes it")
    (tmp_path / "ema_state.pt").write_bytes(pickle.dumps(trap))
    refuse(act, tmp_path, CheckpointError, "it is no archive as torch writes it")
    assert not (tmp_path / "it ran").exists()


def repack(path, *, compression=zipfile.ZIP_STORED, extra=b""):
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
        if extra:
            archive.writestr("archive/data/999", extra)


def test_an_archive_that_unfolds_is_refused(act, tmp_path, trained):
    torch.save(described(trained), tmp_path / "ema_state.pt")
    repack(tmp_path / "ema_state.pt", compression=zipfile.ZIP_DEFLATED)
    refuse(act, tmp_path, CheckpointError, "its parts are compressed")
    torch.save(described(trained), tmp_path / "ema_state.pt")
    repack(tmp_path / "ema_state.pt", extra=bytes(12_000_000))
    refuse(act, tmp_path, CheckpointError, r"it unfolds to 12 MB, more than the average of this policy can have")


@pytest.mark.parametrize("share", [0, 0.001, 0.3, 0.9, 0.9999])
def test_a_truncated_one_is_refused(act, tmp_path, trained, share):
    path = tmp_path / "ema_state.pt"
    torch.save(described(trained), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    refuse(act, tmp_path, CheckpointError, "ema_state.pt` cannot be used: it is")


def test_damage_inside_it_is_refused(act, tmp_path, trained):
    path = tmp_path / "ema_state.pt"
    torch.save(described(trained), path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    for damaged in (b"", b"\x80\x02.", b"\x80\x02}q\x00X\xff\xff\xff\xff.", bytes(range(256))):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in entries.items():
                archive.writestr(name, damaged if name.endswith("data.pkl") else content)
        refuse(act, tmp_path, CheckpointError, "ema_state.pt`")


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {},
        {"shadow_params": 3},
        {"shadow_params": [1, 2]},
        {"shadow_params": [torch.zeros(2, dtype=torch.int64)]},
        {"shadow_params": [torch.zeros(2, 2).to_sparse()]},
    ],
    ids=["list", "empty", "number", "numbers", "integers", "sparse"],
)
def test_other_content_is_refused(act, tmp_path, content):
    torch.save(content, tmp_path / "ema_state.pt")
    refuse(act, tmp_path, CheckpointError, "it holds no list `shadow_params` of floating-point tensors")


def test_an_average_of_another_policy_is_refused(act, tmp_path, trained):
    content = described(trained)
    count = len(content["shadow_params"])
    torch.save({**content, "shadow_params": content["shadow_params"][:-1]}, tmp_path / "ema_state.pt")
    refuse(act, tmp_path, KeyMismatch, f"average of {count - 1} parameters, and the policy has {count}")
    content["shadow_params"][0] = torch.zeros(1, 2, 3)
    torch.save(content, tmp_path / "ema_state.pt")
    refuse(act, tmp_path, KeyMismatch, r"other shape 1: `model.\S+` is \(1, 2, 3\)")


def test_its_values_and_its_count_are_checked(act, tmp_path, trained):
    content = described(trained, optimization_step="3")
    torch.save(content, tmp_path / "ema_state.pt")
    refuse(act, tmp_path, CheckpointError, "`optimization_step` is '3'")
    content = described(trained)
    content["shadow_params"][0].view(-1)[0] = float("nan")
    torch.save(content, tmp_path / "ema_state.pt")
    refuse(act, tmp_path, CheckpointError, "holds NaN or infinity")


# SmolVLA, whose layers keep packed or rounded copies of their weights


@pytest.fixture(scope="module")
def vlm(tmp_path_factory):
    return write_tiny_vlm(tmp_path_factory.mktemp("vlm") / "tiny")


def chunk(policy, batch):
    torch.manual_seed(3)
    return policy.predict_chunk(batch)


def loss(policy, batch):
    """As the held-out loss is measured: without asking the layers anew for each batch."""
    torch.manual_seed(3)
    with torch.inference_mode():
        return policy.loss(batch)[0]


@pytest.mark.parametrize("precision", ["mixed", "float32", "released"])
def test_copies_of_weights_are_those_of_the_weights_that_stand_in(vlm, precision):
    config = tiny_smolvla_config(vlm, precision=precision, train_state_proj=True)
    batch = tiny_smolvla_batch(config, 2)
    results = []
    for evaluates in (False, True):
        torch.manual_seed(0)
        policy = make_policy(config)
        policy.load_state_dict(spread_weights(policy.state_dict()))
        ema = make_ema(EmaConfig(enable=True, decay=0.5), policy)
        fused = all(p.dtype is torch.float32 for p in policy.parameters() if p.requires_grad)
        optimizer = make_optimizer(AdamWConfig(lr=1e-2), policy.optim_groups(), fused=fused)
        for step in range(2):
            policy.train()
            torch.manual_seed(step)
            policy.loss(batch)[0].backward()
            optimizer.step()
            optimizer.zero_grad()
            ema.update()
            if evaluates:
                check_evaluation(config, policy, ema, batch)
        results.append({**policy.state_dict(), **{f"average of {n}": t for n, t in ema.averaged.items()}})
    assert_same(*results)


def check_evaluation(config, policy, ema, batch):
    """Own weights, then the average, then own weights again: each as a policy that never had others."""
    policy.eval()
    own = [loss(policy, batch), chunk(policy, batch)]
    other = make_policy(config)
    other.load_state_dict(policy.state_dict())
    with torch.no_grad():
        for name, shadow in ema.averaged.items():
            other.get_parameter(name).copy_(shadow)
    other.eval()
    with ema.swapped(policy):
        assert torch.equal(loss(policy, batch), expected := loss(other, batch))
        assert torch.equal(chunk(policy, batch), chunk(other, batch))
    if ema.updates > 1:  # the first update copies the weights
        assert not torch.equal(expected, own[0])
    assert torch.equal(loss(policy, batch), own[0])
    assert torch.equal(chunk(policy, batch), own[1])
