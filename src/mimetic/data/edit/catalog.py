"""The operations of `mimetic dataset edit`: LeRobot's under LeRobot's names, then ours."""

from __future__ import annotations

from mimetic.catalog import Catalog, Entry

_CONFIG = "mimetic.data.edit.config:"
_EPISODES = "mimetic.data.edit.episodes:"
_FEATURES = "mimetic.data.edit.features:"

OPERATIONS = Catalog(
    "operation",
    {
        "delete_episodes": Entry(
            _EPISODES + "plan_delete", _CONFIG + "DeleteEpisodesConfig", summary="Leave episodes out"
        ),
        "split": Entry(_EPISODES + "plan_split", _CONFIG + "SplitConfig", summary="Make several datasets of one"),
        "merge": Entry(
            "mimetic.data.edit.merge:plan_merge", _CONFIG + "MergeConfig", summary="Make one dataset of several"
        ),
        "remove_feature": Entry(
            _FEATURES + "plan_remove", _CONFIG + "RemoveFeatureConfig", summary="Leave columns or cameras out"
        ),
        "add_features": Entry(_FEATURES + "plan_add", _CONFIG + "AddFeaturesConfig", summary="Add columns from files"),
        "modify_features": Entry(
            _FEATURES + "plan_modify", _CONFIG + "ModifyFeaturesConfig", summary="Add and leave out columns in one go"
        ),
        "modify_tasks": Entry(
            "mimetic.data.edit.tasks:plan_modify_tasks", _CONFIG + "ModifyTasksConfig", summary="Change instructions"
        ),
        "convert_image_to_video": Entry(
            "mimetic.data.edit.videos:plan_convert",
            _CONFIG + "ConvertImageToVideoConfig",
            summary="Turn pictures inside data files into videos",
        ),
        "recompute_stats": Entry(
            "mimetic.data.edit.videos:plan_recompute",
            _CONFIG + "RecomputeStatsConfig",
            summary="Compute the statistics from the data again",
        ),
        "reencode_videos": Entry(
            "mimetic.data.edit.videos:plan_reencode",
            _CONFIG + "ReencodeVideosConfig",
            summary="Encode the videos again with other settings",
        ),
        "info": Entry("", _CONFIG + "InfoConfig", summary="Show what the dataset holds"),
        "trim": Entry(
            _EPISODES + "plan_trim", _CONFIG + "TrimConfig", summary="Cut off what stands still at both ends"
        ),
        "keep": Entry(_EPISODES + "plan_keep", _CONFIG + "KeepConfig", summary="Keep only some episodes"),
        "rename": Entry(
            _FEATURES + "plan_rename", _CONFIG + "RenameConfig", summary="Rename features, cameras and joints"
        ),
    },
)
