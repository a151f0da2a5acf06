"""The loop of a probe: one JSON request line in, one JSON answer line out, with the costs of answering.

Imports nothing but the standard library, because it runs in both interpreters.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def serve(answer: Callable[..., dict[str, Any] | None]) -> None:
    """Call `answer(**request)` for each line; `cpu_s` counts all threads of this process, not its children."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print must not mix with the answers
    for line in sys.stdin:
        request = json.loads(line)
        cpu, wall = time.process_time(), time.perf_counter()
        extra = answer(**request) or {}
        costs = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}
        channel.write(json.dumps({**costs, **extra}) + "\n")
