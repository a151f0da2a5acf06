"""The engine on a Ray cluster of two machines, which this one plays."""

from __future__ import annotations

import importlib.util
import os

import engine_work as work
import pytest

from mimetic.data.engine.config import EngineConfig
from mimetic.data.engine.run import run_tasks
from mimetic.errors import DatasetError, MissingExtra, WorkerError

HAS_RAY = importlib.util.find_spec("ray") is not None
RAY = EngineConfig(engine="ray")


@pytest.mark.skipif(HAS_RAY, reason="the package ray is installed")
def test_without_the_package_the_command_to_install_it_is_given(tmp_path):
    with pytest.raises(MissingExtra, match="needs the package ray") as caught:
        run_tasks(work.square, [work.Part(0, tmp_path)], RAY)
    assert "mimetic[ray]" in caught.value.hint


@pytest.mark.skipif(not HAS_RAY, reason="needs the package ray")
@pytest.mark.filterwarnings("default")
def test_a_wrong_address_is_said_at_once(tmp_path):
    with pytest.raises(WorkerError, match="no Ray cluster"):
        run_tasks(work.square, [work.Part(0, tmp_path)], EngineConfig(engine="ray", address="127.0.0.1:1"))


@pytest.mark.skipif(not HAS_RAY, reason="needs the package ray")
@pytest.mark.filterwarnings("default")
class TestCluster:
    def test_two_machines_give_what_one_process_gives(self, ray_cluster, tmp_path):
        tasks = [work.Part(number, tmp_path) for number in range(12)]
        done = []
        found = run_tasks(work.square_and_node, tasks, RAY, on_done=lambda position, result: done.append(position))
        assert [value for value, _ in found] == [number**2 for number in range(12)]
        assert sorted(done) == list(range(12))
        assert len({node for _, node in found}) == 2

    def test_a_failing_task_names_itself(self, ray_cluster, tmp_path):
        with pytest.raises(DatasetError) as caught:
            run_tasks(
                work.fail_at_three,
                [work.Part(n, tmp_path) for n in range(40)],
                RAY,
                name=lambda part: f"part {part.number}",
            )
        assert (caught.value.message, caught.value.hint) == ("part 3: the rows are gone", "look for them")
        assert len(list(tmp_path.iterdir())) < 20

    def test_a_full_disk_stays_the_error_that_the_command_line_knows(self, ray_cluster, tmp_path):
        with pytest.raises(OSError, match="No space left") as caught:
            run_tasks(work.fail_full, [work.Part(0, tmp_path)], RAY)
        assert caught.value.errno == 28

    def test_a_worker_that_dies_again_and_again_is_said(self, ray_cluster, tmp_path):
        with pytest.raises(WorkerError, match="lost before its task was done"):
            run_tasks(work.fall, [work.Part(0, tmp_path)], RAY)

    def test_a_worker_computes_with_one_thread(self, ray_cluster, tmp_path):
        assert run_tasks(work.threads, [work.Part(0, tmp_path)], RAY) == [(1, "1")]
        assert os.environ["OMP_NUM_THREADS"] == "1"
