"""Starts LeRobot's loader as its training does: torch's DataLoader, spawned workers. Argument: dataset folder.

The imports stand inside `main`, so that a spawned worker imports only what unpickling the dataset needs; the real
command imports at least as much.
"""

import sys


def main() -> None:
    """Serve requests."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from serve import serve
    from torch.utils.data import DataLoader

    delta = {"action": [step / 10 for step in range(8)]}
    dataset = LeRobotDataset("local/tiny_vec", root=sys.argv[1], delta_timestamps=delta, return_uint8=True)
    dataset[0]
    kept = []

    def answer(workers: int) -> None:
        """Make a loader and wait for its first batch."""
        more = {"multiprocessing_context": "spawn", "prefetch_factor": 4, "persistent_workers": True}
        loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers, **(more if workers else {}))
        iterator = iter(loader)
        next(iterator)
        kept.append((loader, iterator))

    serve(answer)


if __name__ == "__main__":
    main()
