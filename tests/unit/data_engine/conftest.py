"""A Ray cluster of two machines that this one plays."""

from __future__ import annotations

import os
from pathlib import Path

import engine_work
import pytest


@pytest.fixture(scope="module")
def ray_cluster():
    """Two nodes of one core each; this process is connected to them."""
    import ray
    from ray.cluster_utils import Cluster

    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(engine_work.__file__).parent), path]))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ.pop("PYTHONPATH") if path is None else os.environ.update(PYTHONPATH=path)
