"""Small datasets that a loop could have recorded."""

import numpy as np
import pytest

from mimetic.data.writer import DatasetWriter
from mimetic.testing.datasets import coded_image

SIZE = (64, 80)  # at 48x64, libsvtav1 with preset 12 leaves small changes of a picture out
FEATURES = {
    "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
    "observation.state": {"dtype": "float64", "shape": (3,), "names": None},
    "observation.images.top": {"dtype": "video", "shape": (*SIZE, 3), "names": ["height", "width", "channels"]},
}
AS_IMAGE = {key: {**entry, "dtype": "image"} if entry["dtype"] == "video" else entry for key, entry in FEATURES.items()}
WITHOUT = {key: entry for key, entry in FEATURES.items() if entry["dtype"] != "video"}


def frame(episode, k, features=FEATURES):
    value = {
        "action": np.array([episode, k], dtype=np.float32),
        "observation.state": np.array([episode + k / 3, k, -k], dtype=np.float64),
        "observation.images.top": coded_image(episode, k, SIZE),
    }
    return {**{key: value[key] for key in value if key in features}, "task": f"task {episode % 2}"}


def add(writer, episode, length, features=None):
    for k in range(length):
        writer.add_frame(frame(episode, k, features or writer.features))


def record(root, lengths, features=FEATURES, *, finalize=True, **options):
    writer = DatasetWriter.create("local/recorded", 10, features, root, **options)
    for episode, length in enumerate(lengths):
        add(writer, episode, length)
        writer.save_episode()
    if finalize:
        writer.finalize()
    return writer


def files(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


@pytest.fixture
def root(tmp_path):
    return tmp_path / "recorded"
