"""Each picture fault is found in its episodes, and nothing else (spec/dataset_quality.md 12)."""

import shutil

import pytest
from drawn_scene import Faults, build_scene

from mimetic.data.check.finding import Claim
from mimetic.data.check.pictures.run import RULES, check_pictures
from mimetic.data.check.source import open_source

SMALL = {"length": 16, "episodes": 12, "cameras": ("front",), "size": (90, 120), "camera_stats": False}
FRONT = "observation.images.front"


def look(root, **changes):
    return check_pictures(open_source(root, with_rows=True), **changes)


def found(checks, *, with_facts=False):
    """(id, claim, episodes) of what matters."""
    skipped = {Claim.NOT_CHECKED} if with_facts else {Claim.NOT_CHECKED, Claim.FACT}
    return [(item.id, item.claim, item.episodes) for item in checks.findings if item.claim not in skipped]


@pytest.mark.parametrize(
    ("faults", "rule", "claim", "episodes"),
    [
        (Faults(black=(3,)), "image.black", Claim.DEFECT, (3,)),
        (Faults(white=(0, 5)), "image.washed_out", Claim.DEFECT, (0, 5)),
        (Faults(blurred=(5, 6)), "image.blur", Claim.RISK, (5, 6)),
        (Faults(exposure=dict.fromkeys((4, 5, 6), 0.7)), "image.exposure", Claim.RISK, (4, 5, 6)),
        (Faults(exposure=dict.fromkeys(range(6, 12), 0.7)), "image.exposure", Claim.RISK, tuple(range(6, 12))),
        (Faults(tint=dict.fromkeys((2, 3), 18)), "image.white_balance", Claim.RISK, (2, 3)),
        (Faults(moved=dict.fromkeys((10, 11), (12, 5))), "image.camera_moved", Claim.DEFECT, (10, 11)),
        (Faults(turned=dict.fromkeys(range(7, 12), 2.5)), "image.camera_moved", Claim.RISK, tuple(range(7, 12))),
        (Faults(turned=dict.fromkeys((3, 4), -7.0)), "image.camera_moved", Claim.DEFECT, (3, 4)),
        (Faults(frozen={4: (4, 13)}), "image.frozen", Claim.DEFECT, (4,)),
        (Faults(copied={9: 2}), "image.duplicate_footage", Claim.DEFECT, (9,)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_is_found_in_its_episodes_and_nothing_else(tmp_path, faults, rule, claim, episodes):
    build_scene(tmp_path / "set", faults=faults, **SMALL)
    assert found(look(tmp_path / "set")) == [(rule, claim, episodes)]


def test_a_covered_lens(tmp_path):
    build_scene(tmp_path / "set", faults=Faults(covered=(3, 4)), **{**SMALL, "noise": 0.4})
    assert found(look(tmp_path / "set")) == [("image.covered", Claim.DEFECT, (3, 4))]


def test_a_camera_that_was_moved_by_12_of_640_pixels_from_episode_12_on(tmp_path):
    # 3 of 160 pixels is 12 of 640
    moved = Faults(moved=dict.fromkeys(range(12, 20), (3, 0)))
    build_scene(tmp_path / "set", faults=moved, **{**SMALL, "episodes": 20, "size": (120, 160)})
    checks = look(tmp_path / "set")
    assert found(checks) == [("image.camera_moved", Claim.RISK, tuple(range(12, 20)))]
    finding = next(item for item in checks.findings if item.id == "image.camera_moved")
    assert finding.value == pytest.approx(3.0, abs=0.08)  # spec: 0.3 px of 640
    assert "from episode 12 on" in finding.message
    shift = checks.measures[f"image.shift_px[{FRONT}]"]
    assert shift[:12].max() < 0.1
    assert shift[12:] == pytest.approx(3.0, abs=0.08)
    comparison = checks.comparisons[0]
    assert comparison.episodes == tuple(range(12, 20))
    assert comparison.before != comparison.after


def test_cameras_swapped_in_the_first_episodes(tmp_path):
    changes = {**SMALL, "episodes": 20, "cameras": ("front", "side"), "length": 12}
    build_scene(tmp_path / "set", faults=Faults(swapped=(0, 1, 2, 3, 4)), **changes)
    assert found(look(tmp_path / "set")) == [("image.cameras_swapped", Claim.DEFECT, (0, 1, 2, 3, 4))]


def test_the_real_rate_of_a_camera_at_21_hz(tmp_path):
    changes = {**SMALL, "fps": 30, "length": 60, "episodes": 5}
    build_scene(tmp_path / "slow", faults=Faults(real_rate=21.0), **changes)
    build_scene(tmp_path / "right", **changes)
    checks = look(tmp_path / "slow")
    assert found(checks) == [("image.duplicate_frames", Claim.RISK, ())]
    finding = next(item for item in checks.findings if item.id == "image.duplicate_frames")
    assert finding.value == pytest.approx(21.0, abs=1.5)  # 30 pairs an episode: one standard error is 1.1 Hz
    assert found(look(tmp_path / "right")) == []
    full = next(item for item in look(tmp_path / "slow", full=True).findings if item.id == "image.duplicate_frames")
    assert full.value == pytest.approx(21.0, abs=1.2)


def test_a_video_half_a_second_short(tmp_path):
    import av

    root = build_scene(tmp_path / "set", **{**SMALL, "episodes_per_file": 3})
    path = sorted((root / "videos").rglob("*.mp4"))[1]
    shutil.move(path, tmp_path / "whole.mp4")
    with av.open(str(tmp_path / "whole.mp4")) as whole, av.open(str(path), "w") as short:
        stream = short.add_stream_from_template(whole.streams.video[0])
        packets = [packet for packet in whole.demux(video=0) if packet.size]
        for packet in packets[:-5]:  # at 10 Hz
            packet.stream = stream
            short.mux(packet)
    checks = look(root)
    assert found(checks) == [("meta.video_span", Claim.DEFECT, (5,))]
    finding = next(item for item in checks.findings if item.id == "meta.video_span")
    assert finding.value == pytest.approx(0.5)
    assert finding.spans == ((5, 11, 15),)


@pytest.mark.parametrize("seed", range(20))
def test_clean_sets_have_no_findings(tmp_path, seed):
    changes = {**SMALL, "episodes": 5 + seed % 4, "length": 8 + seed % 5 * 3, "fps": (10, 15, 30)[seed % 3]}
    build_scene(tmp_path / "set", **{**changes, "seed": seed, "cameras": ("front", "side")[seed % 2 :][:1]})
    assert found(look(tmp_path / "set"), with_facts=True)[1:] == []  # the first states the compression


def test_wrist_cameras_and_rooms_without_the_robot_are_no_fault(tmp_path):
    changes = {**SMALL, "cameras": ("wrist", "room"), "fps": 15, "length": 30}
    build_scene(tmp_path / "set", **changes)
    checks = look(tmp_path / "set")
    assert found(checks) == []
    reasons = {(item.id, item.feature.rsplit(".", 1)[1]) for item in checks.findings if item.claim is Claim.NOT_CHECKED}
    assert ("image.camera_moved", "wrist") in reasons
    assert ("image.duplicate_frames", "room") in reasons


def test_a_camera_that_never_moves_its_picture_cannot_be_called_frozen_but_one_that_usually_does_can(tmp_path):
    build_scene(tmp_path / "set", faults=Faults(frozen=dict.fromkeys(range(12), (0, 15))), **SMALL)
    checks = look(tmp_path / "set")
    assert found(checks) == []
    assert any(item.id == "image.frozen" and item.claim is Claim.NOT_CHECKED for item in checks.findings)


def test_pictures_in_data_files_and_worker_processes_give_the_same(tmp_path):
    from mimetic.data.engine.config import EngineConfig

    root = build_scene(tmp_path / "set", faults=Faults(black=(2,)), dtype="image", **{**SMALL, "episodes": 9})
    alone = look(root)
    assert found(alone) == [("image.black", Claim.DEFECT, (2,))]
    pool = look(root, engine=EngineConfig(engine="pool", num_workers=2))
    assert pool.findings == alone.findings
    assert [thumb.jpeg for thumb in pool.thumbnails] == [thumb.jpeg for thumb in alone.thumbnails]
    assert set(alone.rules) == set(RULES)
