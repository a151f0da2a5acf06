import math
import subprocess
import sys

import pytest
import torch

from mimetic.train.metrics import Counters, Window, big_number, log_line, peak_memory_gb, summarise


def test_big_numbers_shorten_by_thousands():
    assert [big_number(v) for v in (0, 999, 8523, 1_500_000, 2.4e9)] == ["0", "999", "9K", "2M", "2B"]


def test_window_means_equal_plain_means_and_clear_forgets():
    window = Window()
    for value in (1.0, 2.0, 4.5):
        window.add("loss", torch.tensor(value))
        window.add("lr", value / 10)
    window.add("grad_norm", torch.tensor(7.0))
    means = window.means()
    assert means == {"loss": 2.5, "lr": (0.1 + 0.2 + 0.45) / 3, "grad_norm": 7.0}
    window.clear()
    assert window.means() == {}


def test_window_keeps_no_graph():
    weight = torch.ones(3, requires_grad=True)
    window = Window()
    window.add("loss", (weight * 2).sum())
    assert all(not v.requires_grad for values in window._tensors.values() for v in values)


def test_log_line_has_the_peers_keys_order_and_formats():
    # fixtures/training/logs/run_preset.log, step 1; the step is printed in full, our own keys follow
    counters = Counters(batch_size=4, num_frames=45, num_episodes=4)
    counters.advance()
    means = {
        "loss": 10.118,
        "grad_norm": 148.916,
        "lr": 1e-05,
        "update_s": 0.087,
        "dataloading_s": 0.070,
        "preprocessing_s": 0.004,
        "step_s": 0.161,
        "l1_loss": 1.062,
        "kld_loss": 0.906,
    }
    line = log_line(summarise(counters, means))
    peer = (
        "step:1 smpl:4 ep:0 epch:0.09 loss:10.118 grdn:148.916 lr:1.0e-05 updt_s:0.087 data_s:0.074 smp/s:25 "
        "l1_loss:1.062 kld_loss:0.906"
    )
    assert line == peer + " prep_s:0.004 step_s:0.161 lim:data"


def test_memory_follows_the_peers_keys_and_stands_in_the_record():
    counters = Counters(batch_size=8, num_frames=1000, num_episodes=10)
    counters.advance()
    means = dict.fromkeys(("loss", "lr", "update_s", "dataloading_s", "preprocessing_s"), 0.01) | {"step_s": 0.1}
    record = summarise(counters, means | {"ram_gb": 1.234, "gpu_mem_gb": 7.411})
    assert (record["ram_gb"], record["gpu_mem_gb"]) == (1.234, 7.411)
    line = log_line(record)
    assert line.endswith(" step_s:0.100 ram_gb:1.23")
    assert line.count("ram_gb") == 1
    assert " mem_gb:7.41 " in line  # LeRobot's key in LeRobot's place, on CUDA only


def test_peak_memory_is_that_of_this_process_and_never_falls():
    before = peak_memory_gb()
    if before is None:
        pytest.skip("this system does not tell")
    block = bytearray(b"x") * (256 << 20)
    grown = peak_memory_gb()
    del block
    assert 0.05 < before <= grown + 0.01 < 200  # the kernel adds its counters up lazily, to a few MiB
    assert peak_memory_gb() >= grown - 0.01
    script = "from mimetic.train.metrics import peak_memory_gb as p\na = p()\nb = bytearray(b'x') * (512 << 20)\nprint(p() - a)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0.45 < float(done.stdout) < 0.6  # half a GiB, beside what the fresh process held at its peak before


def test_step_is_printed_in_full():
    counters = Counters(batch_size=8, num_frames=1000, num_episodes=10, step=20_099)
    counters.advance()
    means = dict.fromkeys(("loss", "lr", "update_s", "dataloading_s", "preprocessing_s"), 0.01) | {"step_s": 0.03}
    assert log_line(summarise(counters, means)).startswith("step:20100 smpl:161K ")


def test_counters_continue_where_they_stopped():
    run = Counters(batch_size=4, num_frames=45, num_episodes=4)
    for _ in range(5):
        run.advance()
    again = Counters(batch_size=4, num_frames=45, num_episodes=4, step=3, samples=12)
    again.advance()
    again.advance()
    assert (again.step, again.samples, again.epochs, again.episodes) == (
        run.step,
        run.samples,
        run.epochs,
        run.episodes,
    )


def test_a_window_without_any_time_gives_no_rate():
    counters = Counters(batch_size=4, num_frames=45, num_episodes=4)
    assert math.isnan(summarise(counters, {"loss": 1.0})["samples_per_s"])
