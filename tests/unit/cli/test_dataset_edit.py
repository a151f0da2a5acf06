"""`mimetic dataset edit` and `mimetic dataset repair` as they are typed."""

import json

import pyarrow.parquet as pq
import pytest

from mimetic.cli.app import main
from mimetic.data.reader import open_dataset
from mimetic.testing.datasets import build_dataset


@pytest.fixture
def root(tmp_path):
    return build_dataset(tmp_path / "pick", lengths=(4, 3, 5), cameras={"top": (40, 64)}, tasks=("one", "two"))


def edit(root, *flags):
    return main(["dataset", "edit", f"--root={root}", "--engine=serial", *flags])


def test_deleting_in_place_says_where_the_old_dataset_is(root, capsys):
    assert edit(root, "--operation.type=delete_episodes", "--operation.episode_indices=[1]") == 0
    said = capsys.readouterr().out
    assert "2 episodes, 9 frames" in said
    assert f"`{root}_old`" in said
    assert open_dataset(root=root).num_episodes == 2


def test_lerobots_command_line_works(root, tmp_path, capsys):
    flags = ["--repo_id=me/pick", f"--new_root={tmp_path / 'out'}", "--new_repo_id=me/out", "--push_to_hub=false"]
    assert edit(root, *flags, "--operation.type=remove_feature", "--operation.feature_names=['action']") == 0
    assert "action" not in open_dataset(root=tmp_path / "out").features


def test_a_dry_run_shows_everything_and_writes_nothing(root, tmp_path, capsys):
    flags = ("--operation.type=trim", "--operation.by=frames", "--operation.head=1", "--dry_run=true")
    assert edit(root, *flags, "--json=true") == 0
    facts = json.loads(capsys.readouterr().out)[0]
    assert (facts["episodes"], facts["frames"], facts["source_frames"]) == (3, 9, 12)
    assert facts["videos"] == {"linked": 0, "copied": 0, "cut": 3, "encoded": 0}
    assert facts["encoded_frames"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["pick"]
    assert edit(root, *flags) == 0
    assert "nothing was changed" in capsys.readouterr().out


def test_splits_stand_beside_the_source(root, tmp_path, capsys):
    assert edit(root, "--operation.type=split", "--operation.splits={train: 0.7, val: 0.3}") == 0
    assert open_dataset(root=tmp_path / "pick_train").num_episodes == 2
    assert open_dataset(root=tmp_path / "pick_val").num_episodes == 1
    assert open_dataset(root=root).num_episodes == 3


def test_merging_by_folders(root, tmp_path, capsys):
    flags = ["--operation.type=merge", f"--operation.roots=[{root},{root}]", f"--new_root={tmp_path / 'both'}"]
    assert main(["dataset", "edit", *flags]) == 0
    assert open_dataset(root=tmp_path / "both").num_episodes == 6


def test_statistics_go_into_a_copy_unless_told_otherwise(root, tmp_path, capsys):
    assert edit(root, "--operation.type=recompute_stats") == 0
    assert (tmp_path / "pick_recomputed_stats" / "meta" / "stats.json").is_file()
    assert edit(root, "--operation.type=recompute_stats", "--operation.overwrite=true") == 0
    assert (tmp_path / "pick_old").is_dir()
    assert edit(root, "--operation.type=recompute_stats", f"--new_root={root}") == 2
    assert "--operation.overwrite=true" in capsys.readouterr().err


def test_info_is_shown(root, capsys):
    assert edit(root, "--operation.type=info", "--operation.show_features=true") == 0
    assert "observation.state" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "no operation is chosen"),
        (["--operation.type=delete"], "delete_episodes"),
        (["--operation.type=delete_episodes"], "`--operation.episode_indices` is missing"),
        (["--operation.type=delete_episodes", "--operation.episode_indices=[9]"], "has episodes 0 to 2"),
        (["--operation.type=merge"], "needs the place of its result"),
        (["--operation.type=reencode_videos", "--operation.rgb_encoder.vcodec=h265"], "no video encoder"),
        (["--operation.type=trim", "--operation.by=frames"], "nothing is to be cut"),
        (
            ["--operation.type=keep", "--operation.episode_indices=[0]", "--push_to_hub=true"],
            "`--new_repo_id=USER/NAME`",
        ),
    ],
)
def test_a_mistake_is_one_clear_message(root, tmp_path, capsys, flags, words):
    assert edit(root, *flags) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert "Traceback" not in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["pick"]


def test_a_repair_is_dry_until_it_is_asked_for(root, capsys):
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("data/file_index")
    pq.write_table(table.set_column(place, "data/file_index", [[0, 0, 2]]), path)
    broken = path.read_bytes()
    command = ["dataset", "repair", f"--root={root}", "--only=meta.data_file,meta.counts"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "meta.data_file: the table names the wrong data file for episodes 1" in said
    assert "nothing was changed; `--apply=true` does it" in said
    assert path.read_bytes() == broken
    assert main([*command, "--apply=true"]) == 0
    assert ".bak" in capsys.readouterr().out
    assert pq.read_table(path)["data/file_index"].to_pylist() == [0, 1, 2]
    assert main([*command, "--apply=true", "--json=true"]) == 0
    assert json.loads(capsys.readouterr().out) == {"root": str(root), "applied": False, "backup": None, "repairs": []}


def test_a_rule_that_does_not_exist_is_named(root, capsys):
    assert main(["dataset", "repair", str(root), "--only=meta.data_files"]) == 2
    assert "did you mean `meta.data_file`?" in capsys.readouterr().err


def test_what_cannot_be_mended_gives_exit_code_1(root, capsys):
    pq.write_table(pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").take([0, 2]), root / "x.parquet")
    (root / "x.parquet").replace(root / "meta/episodes/chunk-000/file-000.parquet")
    assert main(["dataset", "repair", str(root), "--only=meta.ledger"]) == 1
    assert "cannot be mended" in capsys.readouterr().out
