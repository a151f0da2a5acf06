"""mimetic's writer. Arguments: folder, seconds, preset."""

import sys
from pathlib import Path

from record_frames import FEATURES, FPS
from record_loop import record

from mimetic.data.record.config import WriterConfig
from mimetic.data.writer import DatasetWriter

folder, seconds, preset = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
writer = DatasetWriter.create("local/ours", FPS, FEATURES, folder, settings=WriterConfig(encoding=preset))
record(writer.add_frame, writer.save_episode, seconds)
writer.finalize()
