"""Whether a run trains on kept features, what is built for it, and that samples hold the right rows."""

import json
import os
import signal
from collections import namedtuple
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from mimetic.accelerators.precision import Precision
from mimetic.cli.train import load_policy
from mimetic.config.parse import parse
from mimetic.errors import CacheError, ConfigError, Interrupted
from mimetic.policies.base import FrameEncoder
from mimetic.policies.catalog import POLICIES
from mimetic.policies.checkpoint import save_pretrained
from mimetic.testing import frame_policy
from mimetic.testing.datasets import build_dataset
from mimetic.testing.frame_policy import FramePolicy
from mimetic.testing.tiny import TINY_ACT
from mimetic.train import build_features as building
from mimetic.train.build_features import build_features, encode_frames
from mimetic.train.config import TrainConfig
from mimetic.train.data import open_training_data
from mimetic.train.features import feature_key, plan_features, size_text, with_features
from mimetic.train.model import build_model

TOP, SIDE = "observation.images.top", "observation.images.side"
TOP_FEATURES = "observation.features.images.top"
CPU = Precision(torch.device("cpu"), None, "")
ROW = 6 * 8 * 5 * 4  # bytes of a frame's features: 48x64 pixels, every eighth of them, five numbers of float32
AUGMENTED = "--dataset.image_transforms.enable=true"


@pytest.fixture(autouse=True)
def known_policy(monkeypatch):
    monkeypatch.setitem(POLICIES._entries, frame_policy.NAME, frame_policy.ENTRY)
    FramePolicy.encoded = 0


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    cameras = {"top": (48, 64), "side": (48, 64)}
    return build_dataset(
        tmp_path_factory.mktemp("data") / "set", cameras=cameras, lengths=(9, 7, 8), camera_dtype="image"
    )


def settings(root, folder, *flags):
    base = [
        "--policy.type=frame_policy",
        "--policy.device=cpu",
        "--policy.push_to_hub=false",
        "--dataset.repo_id=me/set",
        f"--dataset.root={root}",
        f"--cache.folder={folder}",
        "--num_workers=0",
        "--steps=100",
        "--batch_size=4",
    ]
    return parse(TrainConfig, [*base, *flags], prog="mimetic train", load_policy=load_policy).value


class Case:
    """A run up to the decision."""

    def __init__(self, config, step=0, precision=CPU):
        self.config = config
        self.precision = precision
        self.data = open_training_data(config, config.policy)
        torch.manual_seed(3)
        self.model = build_model(config, self.data, None)
        self.plan = plan_features(config, self.data, self.model, precision, step=step)

    def built(self):
        assert self.plan is not None
        build_features(self.plan, self.config, self.precision)
        return with_features(self.data, self.plan)


def test_samples_hold_the_features_of_their_frames_and_no_camera(root, tmp_path):
    case = Case(settings(root, tmp_path))
    kept = case.built()
    positions = [3, 23, 0, 3, 11]
    plain, found = case.data.train.batch(positions), kept.train.batch(positions)
    for key in (TOP, SIDE):
        assert key not in found
        expected = encode_frames(case.plan.encoder, plain[key], CPU, where=key)
        assert torch.equal(found[feature_key(key)], expected)
        assert len({row.numpy().tobytes() for row in expected}) == 4  # frames differ, so a wrong row would be seen
    for key in set(found) - {TOP_FEATURES, feature_key(SIDE)}:
        assert found[key] == plain[key] if key == "task" else torch.equal(found[key], plain[key])
    assert torch.equal(kept.train.item(3)[TOP_FEATURES], found[TOP_FEATURES][0])


def test_after_building_neither_pictures_nor_the_encoder_are_asked(root, tmp_path, monkeypatch):
    case = Case(settings(root, tmp_path))
    kept = case.built()
    encoded = FramePolicy.encoded
    assert encoded == 24 * 2
    monkeypatch.setattr("mimetic.data.source.Source.read_camera", lambda *args: pytest.fail("a picture was read"))
    batch = case.model.preprocessor(kept.train.batch([0, 5]))
    loss, _ = case.model.policy.loss(batch)
    assert torch.isfinite(loss)
    assert FramePolicy.encoded == encoded


def test_a_second_run_finds_everything_built(root, tmp_path, caplog):
    Case(settings(root, tmp_path)).built()
    with caplog.at_level("INFO", logger="mimetic"):
        again = Case(settings(root, tmp_path, "--steps=1"))
    assert again.plan.n_missing == 0
    assert "24 frames x 2 cameras are read from the cache: 46.1 kB in" in caplog.text


def test_the_size_and_the_folder_are_announced_before_building(root, tmp_path, caplog):
    with caplog.at_level("INFO", logger="mimetic"):
        case = Case(settings(root, tmp_path / "kept"))
    assert case.plan.missing_bytes == 24 * 2 * ROW
    assert f"features of 24 frames x 2 cameras are kept on disk: 46.1 kB in {tmp_path / 'kept'}" in caplog.text
    assert not (tmp_path / "kept").exists()  # a dry run announces, and writes nothing


def test_only_the_runs_episodes_are_built_and_others_are_added_later(root, tmp_path):
    first = Case(settings(root, tmp_path, "--dataset.episodes=[2]"))
    assert first.plan.n_missing == 8 * 2
    kept = first.built().train.batch([0])[TOP_FEATURES]
    second = Case(settings(root, tmp_path, "--dataset.exclude_episodes=[1]"))
    assert second.plan.n_missing == 9 * 2
    assert torch.equal(second.built().train.batch([9])[TOP_FEATURES], kept)
    assert FramePolicy.encoded == (8 + 9) * 2


def test_other_weights_and_other_precision_get_other_files(root, tmp_path):
    Case(settings(root, tmp_path)).built()
    assert Case(settings(root, tmp_path, "--policy.first_weight=0.6")).plan.n_missing == 48
    assert Case(settings(root, tmp_path, "--policy.feature_dtype=bfloat16")).plan.n_missing == 48
    assert Case(settings(root, tmp_path), precision=replace(CPU, autocast_dtype=torch.bfloat16)).plan.n_missing == 48
    assert Case(settings(root, tmp_path)).plan.n_missing == 0


def test_a_changed_picture_is_built_anew(tmp_path):
    root = build_dataset(tmp_path / "set", cameras={"top": (48, 64)}, lengths=(5, 5), camera_dtype="image")
    before = Case(settings(root, tmp_path / "kept")).built().train.batch([5, 6])[TOP_FEATURES]
    path = root / "data/chunk-000/file-001.parquet"
    table = pq.read_table(path)
    cells = table[TOP].to_pylist()
    cells[0] = cells[1]  # the episode's first picture is now its second
    column = pa.array(cells, type=table[TOP].type)
    pq.write_table(table.set_column(table.column_names.index(TOP), TOP, column), path)
    changed = Case(settings(root, tmp_path / "kept"))
    assert changed.plan.n_missing == 10
    assert torch.equal(changed.built().train.batch([5])[TOP_FEATURES], before[1:])


def test_features_come_from_the_augmented_frame_under_its_own_name_for_cameras_that_are_renamed(root, tmp_path):
    policy = tmp_path / "policy"
    case = Case(settings(root, tmp_path / "kept"))
    save_pretrained(case.model.policy, policy, case.model.preprocessor, case.model.postprocessor)
    names = {TOP: SIDE, SIDE: TOP}
    config = parse(
        TrainConfig,
        [
            f"--policy.path={policy}",
            "--policy.device=cpu",
            f"--rename_map={json.dumps(names)}",
            "--dataset.repo_id=me/set",
            f"--dataset.root={root}",
            f"--cache.folder={tmp_path / 'kept'}",
            "--num_workers=0",
        ],
        prog="mimetic train",
        load_policy=load_policy,
    ).value
    swapped = Case(config)
    raw = swapped.built().train.batch([4])
    plain = case.data.train.batch([4])
    assert torch.equal(raw[TOP_FEATURES], encode_frames(case.plan.encoder, plain[TOP], CPU, where=TOP))


def test_a_camera_that_the_policy_does_not_read_is_neither_built_nor_decoded(root, tmp_path):
    one = build_dataset(tmp_path / "one", cameras={"top": (48, 64)}, lengths=(5, 5), camera_dtype="image")
    case = Case(settings(one, tmp_path / "kept"))
    save_pretrained(case.model.policy, tmp_path / "policy", case.model.preprocessor, case.model.postprocessor)
    flags = [f"--policy.path={tmp_path / 'policy'}", "--policy.device=cpu", "--dataset.repo_id=me/set"]
    flags += [f"--dataset.root={root}", f"--cache.folder={tmp_path / 'kept'}", "--num_workers=0"]
    found = Case(parse(TrainConfig, flags, prog="mimetic train", load_policy=load_policy).value)
    assert list(found.plan.train) == [TOP]
    assert found.plan.n_missing == 24
    assert {SIDE, TOP} & set(found.built().train.batch([0])) == set()


# --- decisions


def test_off_is_silent(root, tmp_path, caplog):
    with caplog.at_level("DEBUG", logger="mimetic.train.features"):
        assert Case(settings(root, tmp_path, "--cache.features=off")).plan is None
    assert "features" not in caplog.text


def test_a_policy_without_an_encoder_is_passed_over_in_silence(tmp_path, root, caplog):
    act = [*TINY_ACT, "--policy.pretrained_backbone_weights=null"]
    with caplog.at_level("INFO", logger="mimetic"):
        assert Case(settings(root, tmp_path, *act)).plan is None
    assert "features" not in caplog.text
    with pytest.raises(ConfigError, match=r"`--cache.features=on`: policy `act` has no frozen camera encoder"):
        Case(settings(root, tmp_path, *act, "--cache.features=on"))


REFUSED = {
    "an encoder that is trained": (["--policy.freeze=false"], "the encoder is trained", None),
    "augmentation": ([AUGMENTED], "image augmentation changes frames", "--cache.variants"),
    "normalised frames": (
        ["--policy.normalization_mapping={VISUAL: MEAN_STD, STATE: MEAN_STD, ACTION: MEAN_STD}"],
        "normalised with statistics",
        "VISUAL",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused_by_on_and_left_by_auto(root, tmp_path, caplog, name):
    flags, reason, advice = REFUSED[name]
    with pytest.raises(ConfigError, match=reason) as caught:
        Case(settings(root, tmp_path, *flags, "--cache.features=on"))
    assert caught.value.hint
    with caplog.at_level("INFO", logger="mimetic"):
        assert Case(settings(root, tmp_path, *flags)).plan is None
    if advice is not None:
        assert advice in caught.value.hint
        assert sum("features of frames are not cached" in record.getMessage() for record in caplog.records) == 1
        assert reason in caplog.text


def test_several_frames_of_a_camera_are_refused(root, tmp_path, monkeypatch):
    monkeypatch.setattr(frame_policy.FramePolicyConfig, "observation_delta_indices", property(lambda self: [-1, 0]))
    with pytest.raises(ConfigError, match=r"reads the frames \[-1, 0\] of"):
        Case(settings(root, tmp_path, "--cache.features=on"))


def test_a_window_of_the_current_frame_is_a_single_frame(root, tmp_path, monkeypatch):
    monkeypatch.setattr(frame_policy.FramePolicyConfig, "observation_delta_indices", property(lambda self: [0]))
    found = Case(settings(root, tmp_path)).built().train.batch([0, 1])
    assert found[TOP_FEATURES].shape == (2, 48, 5)
    assert found["observation.state"].shape == (2, 1, 3)


def test_augmentation_that_changes_nothing_is_none(root, tmp_path):
    flags = [AUGMENTED, "--dataset.image_transforms.max_num_transforms=0"]
    assert Case(settings(root, tmp_path, *flags)).plan is not None


def test_auto_builds_when_the_run_reads_more_than_it_would_have_to_encode(root, tmp_path, caplog):
    assert Case(settings(root, tmp_path, "--steps=7")).plan is not None  # 28 samples, 24 frames
    with caplog.at_level("INFO", logger="mimetic"):
        assert Case(settings(root, tmp_path, "--steps=6")).plan is None
        assert Case(settings(root, tmp_path, "--steps=100"), step=95).plan is None
    assert "the run reads 48 frames, and 48 would have to be encoded first" in caplog.text
    assert Case(settings(root, tmp_path, "--steps=6", "--cache.features=on")).plan is not None


Usage = namedtuple("Usage", "total used free")


def test_a_disk_that_is_too_small_is_refused_with_numbers_and_advice(root, tmp_path, caplog, monkeypatch):
    needed = 48 * ROW
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(100_000, 0, needed + 10_000 - 1))
    with pytest.raises(ConfigError, match=f"exactly {needed} bytes") as caught:
        Case(settings(root, tmp_path, "--cache.features=on"))
    assert str(tmp_path) in caught.value.message
    assert f"{needed + 9_999} bytes" in caught.value.message
    for advice in ("--cache.folder", "--dataset.episodes", "--cache.features=off"):
        assert advice in caught.value.hint
    with caplog.at_level("INFO", logger="mimetic"):
        assert Case(settings(root, tmp_path)).plan is None
    assert "not cached" in caplog.text
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(100_000, 0, needed + 10_000))  # a tenth stays free
    assert Case(settings(root, tmp_path, "--cache.features=on")).plan is not None


def test_rows_that_are_there_need_no_room(root, tmp_path, monkeypatch):
    Case(settings(root, tmp_path)).built()
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(100, 100, 0))
    assert Case(settings(root, tmp_path, "--cache.features=on")).plan.n_missing == 0


def test_a_folder_inside_the_dataset_is_refused(root):
    with pytest.raises(ConfigError, match="lies inside the dataset"):
        Case(settings(root, root / "cache"))


def test_a_folder_that_cannot_be_written_is_left_by_auto(root, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level("INFO", logger="mimetic"):
        assert Case(settings(root, tmp_path / "file" / "inside")).plan is None
    assert "cannot be written" in caplog.text


def test_negative_variants_are_refused(root, tmp_path):
    with pytest.raises(ConfigError, match=r"--cache\.variants=-1"):
        settings(root, tmp_path, "--cache.variants=-1")


# --- held-out frames


def test_heldout_samples_get_features_only_when_they_are_measured(root, tmp_path):
    flags = ["--dataset.eval_split=0.3"]
    without = Case(settings(root, tmp_path, *flags))
    assert without.plan.n_missing == 16 * 2
    assert not without.plan.heldout
    measured = Case(settings(root, tmp_path, *flags, "--eval_steps=5", "--max_eval_samples=3"))
    assert measured.plan.n_missing == (16 + 3) * 2
    kept = measured.built()
    plain = measured.data.heldout.batch([0, 2])
    expected = encode_frames(measured.plan.encoder, plain[TOP], CPU, where=TOP)
    assert torch.equal(kept.heldout.batch([0, 2])[TOP_FEATURES], expected)
    with pytest.raises(CacheError, match="are not in"):
        kept.heldout.batch([3])


# --- variants


def test_variants_are_the_augmented_frames_and_each_sample_picks_one(root, tmp_path):
    flags = [AUGMENTED, "--cache.variants=3", "--dataset.eval_split=0.3", "--eval_steps=5"]
    case = Case(settings(root, tmp_path, *flags))
    assert case.plan.n_missing == (16 * 3 + 8) * 2
    kept = case.built()
    view = case.data.train
    expected = []
    for variant in (1, 2, 3):
        chance = building.variant_generator(1000, TOP, 5, variant)
        augmented = view.image_transforms(view.with_windows({}).batch([5])[TOP][0], chance)
        expected.append(encode_frames(case.plan.encoder, augmented[None], CPU, where=TOP)[0])
    assert not torch.equal(expected[0], expected[1])

    def generators():
        return [torch.Generator().manual_seed(seed) for seed in range(30)]

    found = kept.train.batch([5] * 30, generators())
    picked = [[torch.equal(row, one) for one in expected].index(True) for row in found[TOP_FEATURES]]
    assert set(picked) == {0, 1, 2}
    assert torch.equal(found[TOP_FEATURES], kept.train.batch([5] * 30, generators())[TOP_FEATURES])
    plain = encode_frames(case.plan.encoder, case.data.heldout.batch([0])[TOP], CPU, where=TOP)
    assert torch.equal(kept.heldout.batch([0])[TOP_FEATURES], plain)


def test_variants_do_not_depend_on_the_order_of_work(root, tmp_path):
    """A build that was stopped, or had other episodes first, ends with the same rows."""
    flags = [AUGMENTED, "--cache.variants=2"]
    Case(settings(root, tmp_path / "a", *flags)).built()
    Case(settings(root, tmp_path / "b", *flags, "--dataset.episodes=[1]")).built()
    last = Case(settings(root, tmp_path / "b", *flags))
    assert last.plan.n_missing == (24 - 7) * 2 * 2
    last.built()
    names = [path.parent.name for path in sorted((tmp_path / "a").glob("*/features.bin"))]
    assert len(names) == 4
    for name in names:
        assert (tmp_path / "a" / name / "features.bin").read_bytes() == (
            tmp_path / "b" / name / "features.bin"
        ).read_bytes()


def test_more_variants_reuse_those_that_are_there_and_another_seed_does_not(root, tmp_path):
    Case(settings(root, tmp_path, AUGMENTED, "--cache.variants=2")).built()
    assert Case(settings(root, tmp_path, AUGMENTED, "--cache.variants=3")).plan.n_missing == 24 * 2
    assert Case(settings(root, tmp_path, AUGMENTED, "--cache.variants=2", "--seed=1")).plan.n_missing == 24 * 2 * 2


def test_variants_without_augmentation_are_told_to_have_no_effect(root, tmp_path, caplog):
    with caplog.at_level("INFO", logger="mimetic"):
        case = Case(settings(root, tmp_path, "--cache.variants=3"))
    assert case.plan.n_missing == 48
    assert "--cache.variants has no effect" in caplog.text


# --- building


def test_building_draws_no_random_number(root, tmp_path, monkeypatch):
    case = Case(settings(root, tmp_path, AUGMENTED, "--cache.variants=2"))
    encode = FramePolicy.encode
    monkeypatch.setattr(FramePolicy, "encode", lambda self, pixels: (torch.rand(3), encode(self, pixels))[1])
    case = Case(case.config)
    before = torch.get_rng_state()
    case.built()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 3])
def test_the_files_are_the_same_for_every_number_of_workers(root, tmp_path, workers):
    Case(settings(root, tmp_path / "one")).built()
    Case(settings(root, tmp_path / "many", f"--num_workers={workers}")).built()
    for path in (tmp_path / "one").glob("*/*"):
        if path.name != "header.json":
            assert (tmp_path / "many" / path.parent.name / path.name).read_bytes() == path.read_bytes()


def test_a_request_to_stop_keeps_what_is_built(root, tmp_path, monkeypatch):
    case = Case(settings(root, tmp_path))
    encode = FramePolicy.encode

    def stop_after_the_second_batch(self, pixels):
        if FramePolicy.encoded >= 8:
            os.kill(os.getpid(), signal.SIGTERM)
        return encode(self, pixels)

    monkeypatch.setattr(FramePolicy, "encode", stop_after_the_second_batch)
    case = Case(case.config)
    with pytest.raises(Interrupted, match="16 of 48 frames are done and kept") as caught:
        build_features(case.plan, case.config, CPU)
    assert caught.value.exit_code == 143
    monkeypatch.undo()
    monkeypatch.setitem(POLICIES._entries, frame_policy.NAME, frame_policy.ENTRY)
    assert Case(case.config).plan.n_missing == 48 - 16


def test_the_encoder_runs_under_the_precision_of_the_training_step():
    seen = []

    def encode(pixels):
        seen.append((torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), float(pixels.max())))
        return pixels.flatten(1)

    encoder = FrameEncoder("key", (12,), torch.float32, ("top",), encode)
    frames = torch.full((2, 3, 2, 2), 255, dtype=torch.uint8)
    for dtype in (None, torch.bfloat16):
        encode_frames(encoder, frames, replace(CPU, autocast_dtype=dtype), where="top")
    assert seen == [(False, False, 1.0), (True, False, 1.0)]


def test_an_encoder_that_breaks_its_word_is_refused(root, tmp_path, monkeypatch):
    for wrong, message in ((lambda f: f[:, :3], "declares"), (lambda f: f * torch.inf, "not finite")):
        encode = FramePolicy.encode
        with monkeypatch.context() as patch:
            patch.setattr(FramePolicy, "encode", lambda self, pixels, w=wrong, e=encode: w(e(self, pixels)))
            case = Case(settings(root, tmp_path))
            with pytest.raises(CacheError, match=message):
                build_features(case.plan, case.config, CPU)


def test_the_time_is_told_after_the_first_batches_and_then_now_and_then(monkeypatch, caplog):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    shown = []
    pace = building._Pace(1000, shown.append)
    with caplog.at_level("INFO", logger="mimetic"):
        for _ in range(90):
            now[0] += 1.0
            pace.advance(10)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "building features takes about 2 min at 10.0 frames/s; Ctrl-C keeps what is built",
        "features: 630 of 1,000 frames, about 37 s left",
    ]
    assert shown[-1] == 900


def test_frames_are_taken_in_order_across_holes(root, tmp_path):
    positions = np.asarray([0, 1, 2, 7, 9, 10])

    class Frames:
        def batch(self, positions, generators=None):
            return {"positions": torch.as_tensor(positions)}

        def address(self, position):
            return None

    config = settings(root, tmp_path)
    loader = building._loader(Frames(), positions, config, torch.device("cpu"), is_heldout=False)
    found = [batch["positions"] for batch in building._batches(loader)]
    assert torch.cat(found).tolist() == positions.tolist()


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(3_033_000_000, "3.0 GB"), (46_080, "46.1 kB"), (999, "999 bytes"), (5_000_000, "5.0 MB")]
)
def test_sizes_in_words(n_bytes, text):
    assert size_text(n_bytes) == text
