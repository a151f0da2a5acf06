"""LeRobot's recorder with the defaults of its command: four image threads a camera. Arguments: folder, seconds, mode.

Modes: `default` (pictures as PNG, encoded in save_episode) and `streaming` (encoded while recording).
"""

import sys
from pathlib import Path

from lerobot.datasets.lerobot_dataset import LeRobotDataset
from record_frames import CAMERAS, FEATURES, FPS
from record_loop import record

folder, seconds, mode = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
dataset = LeRobotDataset.create(
    "local/peer",
    FPS,
    FEATURES,
    root=folder,
    image_writer_threads=4 * len(CAMERAS),
    streaming_encoding=mode == "streaming",
)
record(dataset.add_frame, dataset.save_episode, seconds)
dataset.finalize()
