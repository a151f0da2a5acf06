"""Recordings without faults: no defect in any of forty, and few risks."""

import numpy as np
import pytest

from mimetic.data.check.finding import Claim
from mimetic.data.check.run import check_dataset
from mimetic.testing.recordings import ALOHA, PANDA, SO101, Recording, build_recording

N = 40
MOST_MEAN_RISKS = 2.5
"""One or two say that there are few episodes, or few of each situation: true of sets as small as these."""


def random_recording(seed):
    generator = np.random.default_rng(1000 + seed)
    return Recording(
        episodes=int(generator.choice([10, 20, 40])),
        fps=int(generator.choice([10, 15, 20, 30, 50, 60])),
        names=[SO101, ALOHA, PANDA][generator.integers(3)],
        unit=str(generator.choice(["degrees", "radians", "normalised"])),
        seconds=(float(generator.uniform(2, 4)), float(generator.uniform(5, 12))),
        positions=int(generator.integers(1, 8)),
        lag=int(generator.integers(0, 6)),
        noise=float(generator.choice([0.0, 0.0005, 0.002])),
        seed=seed,
    )


@pytest.mark.timeout(300)
def test_no_defect_and_no_storm_of_risks_in_random_recordings(tmp_path):
    risks = []
    for seed in range(N):
        spec = random_recording(seed)
        report = check_dataset(build_recording(tmp_path / str(seed), spec))
        assert [(finding.id, finding.message) for finding in report.defects] == [], spec
        assert report.facts["action"]["semantics"] == "absolute"
        assert report.facts["action"]["lag_frames"] == spec.lag
        risks.append([finding.id for finding in report.findings if finding.claim is Claim.RISK])
    mean = float(np.mean([len(found) for found in risks]))
    print(f"mean number of risks in {N} clean datasets: {mean:.2f}")
    assert mean <= MOST_MEAN_RISKS
    assert max(len(found) for found in risks) <= 5
