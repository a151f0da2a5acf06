"""Claim: the `fast` preset has the picture quality of LeRobot's default encoder at a fraction of its processor time.

Encodes 120 frames of 640x480 (textured background, moving shapes, noise) with each preset and decodes them again:
processor time and bytes a frame, and the peak signal-to-noise ratio against what went in.

    python -m benchmarks.encoders
"""

from __future__ import annotations

import math
import sys
import time
from itertools import islice

import numpy as np

from benchmarks import make_video_dataset
from benchmarks.measure import WORK
from mimetic.data.encoding.config import PRESETS
from mimetic.data.encoding.encoder import VideoEncoder
from mimetic.data.video.frames import FrameReader

FRAMES = 120
MOST_WORK, LEAST_QUALITY_DB = 0.5, -0.1


def measure() -> dict[str, dict[str, float]]:
    """CPU [ms], size [kB] and PSNR [dB] a frame of each preset."""
    pictures = list(islice(make_video_dataset.pictures(0), FRAMES))
    height, width = pictures[0].shape[:2]
    WORK.mkdir(parents=True, exist_ok=True)
    path = WORK / "encoders.mp4"
    found = {}
    for name, settings in PRESETS.items():
        start = time.process_time()
        with VideoEncoder(path, fps=30, height=height, width=width, settings=settings) as encoder:
            for picture in pictures:
                encoder.add(picture)
        used = time.process_time() - start
        reader = FrameReader()
        errors = [
            np.square(reader.read(path, [k], fps=30)[0].transpose(1, 2, 0).astype(np.float64) - picture).mean()
            for k, picture in enumerate(pictures)
        ]
        reader.close()
        error = float(np.mean(errors))
        found[name] = {
            "cpu_ms": 1000 * used / FRAMES,
            "kb": path.stat().st_size / 1000 / FRAMES,
            "psnr_db": 10 * math.log10(255**2 / error) if error else math.inf,
        }
    path.unlink()
    return found


def main() -> int:
    """Print the table; 1 when the claim is missed."""
    found = measure()
    print("| preset | CPU a frame | size a frame | PSNR |\n|---|---:|---:|---:|")
    for name, one in found.items():
        print(f"| `{name}` | {one['cpu_ms']:.1f} ms | {one['kb']:.0f} kB | {one['psnr_db']:.1f} dB |")
    fast, small = found["fast"], found["small"]
    is_cheap = fast["cpu_ms"] <= MOST_WORK * small["cpu_ms"]
    is_good = fast["psnr_db"] - small["psnr_db"] >= LEAST_QUALITY_DB
    return 0 if is_cheap and is_good and math.isinf(found["lossless"]["psnr_db"]) else 1


if __name__ == "__main__":
    sys.exit(main())
