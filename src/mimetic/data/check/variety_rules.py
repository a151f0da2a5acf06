"""Rules across episodes: amount, repetitions, duplicates, balance, drift, failures (dataset_quality 8)."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from mimetic.data.check import gripper, variety
from mimetic.data.check.channels import Channels
from mimetic.data.check.finding import Claim
from mimetic.data.check.motion import DELTA, Motion
from mimetic.data.check.motion_rules import places_by_task, scaled
from mimetic.data.check.outcomes import outcomes
from mimetic.data.check.results import Results
from mimetic.data.check.scores import LEAST_EPISODES
from mimetic.data.check.source import CheckSource
from mimetic.data.check.task_rules import normalised
from mimetic.data.episodes import listed
from mimetic.names import ACTION, STATE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_RULES = ("variety.duplicates", "variety.near_duplicates", "variety.contexts", "variety.diversity", "variety.drift")
LEAST_A_TASK, GOOD_A_TASK = 30, 50
LEAST_A_CLUSTER, GOOD_A_CLUSTER = 5, 10
_DIVERSITY = 0.05
_DRIFT, _DRIFT_RANGE = 3.0, 0.10
_RARE = 0.05
_MANY = 5000
_SAME_MOTION, _LEAST_OF_TASK, _MOST_TASKS = 0.03, 5, 50


def check_variety(motion: Motion, results: Results) -> None:
    """Rules `variety.*` on rows."""
    _check_outcomes(motion, results)
    main = motion.state if motion.state is not None else motion.action
    if main is None:
        results.skip(_RULES, "there is neither a float `observation.state` nor a float `action`")
        return
    copies = _check_duplicates(motion, results)
    if not main.live.any():
        results.skip(_RULES[1:], "no channel is continuous")
        return
    _check_near_duplicates(motion, main, copies, results)
    _check_contexts(motion, main, results)
    _check_spread(motion, main, results)


def check_amount(source: CheckSource, results: Results) -> None:
    """Number of demonstrations of each task, and balance of the tasks; needs the metadata only."""
    by_task = places_by_task(source)
    if not by_task:
        return
    results.apply("variety.amount", "variety.balance")
    counts = {task: len(places) for task, places in by_task.items()}
    results.facts["tasks"] = [{"task": task, "episodes": count} for task, count in counts.items()]
    few = {task: count for task, count in counts.items() if count < LEAST_A_TASK}
    if few:
        task, count = min(few.items(), key=lambda item: item[1])
        what = f"`{task:.60}` has {count}" if len(counts) > 1 else f"there are {count}"
        results.add(
            "variety.amount",
            f"{what} episode{'' if count == 1 else 's'}"
            + (f", {len(few) - 1} more tasks have few" if few and len(few) > 1 else "")
            + f"; {LEAST_A_TASK} a task are little, {GOOD_A_TASK} are usual",
            value=float(count),
            threshold=float(LEAST_A_TASK),
            unit="episodes",
        )
    total = sum(counts.values())
    rare = [task for task, count in counts.items() if count < _RARE * total]
    if rare:
        episodes = [int(source.episodes[place]) for task in rare for place in by_task[task]]
        results.add(
            "variety.balance",
            f"{len(rare)} of {len(counts)} tasks have less than 5 % of the episodes, such as `{rare[0]:.60}` with "
            f"{counts[rare[0]]} of {total}",
            episodes=episodes,
            value=round(min(counts.values()) / total, 4),
            threshold=_RARE,
        )


def _check_outcomes(motion: Motion, results: Results) -> None:
    succeeded, where = outcomes(motion.source)
    if not succeeded:
        results.skip("variety.failures", where)
        return
    results.apply("variety.failures")
    failed = [episode for episode, success in succeeded.items() if not success]
    if failed and len(failed) < len(motion.source.episodes):
        share = len(failed) / len(motion.source.episodes)
        results.add(
            "variety.failures",
            f"{len(failed)} episodes ({share:.0%}) are labelled as failed: {listed(failed)}",
            episodes=failed,
            feature=where,
            value=round(share, 4),
            threshold=0.0,
            repair=results.delete(failed),
        )


def _check_duplicates(motion: Motion, results: Results) -> set[int]:
    results.apply("variety.duplicates")
    hashes: dict[int, str] = {}
    for episode in motion.source.episodes.tolist():
        columns = motion.source.columns_of(episode)
        parts = [columns[key] for key in (ACTION, STATE) if key in columns]
        # A handful of rows may agree by chance, and episodes that do nothing have a rule of their own.
        if parts and len(parts[0]) >= 5 and any(np.ptp(part, axis=0).any() for part in parts):
            hashes[episode] = variety.content_hash(*parts)
    groups = variety.groups_of(hashes)
    if groups:
        copies = sorted(itertools.chain.from_iterable(group[1:] for group in groups))
        results.add(
            "variety.duplicates",
            f"episodes {listed(copies)} are identical to earlier ones (episode {groups[0][1]} to {groups[0][0]})",
            episodes=copies,
            value=float(len(copies)),
            threshold=0.0,
            unit="episodes",
            repair=results.delete(copies),
        )
    return set(itertools.chain.from_iterable(groups))


def _check_near_duplicates(motion: Motion, main: Channels, copies: set[int], results: Results) -> None:
    paths: dict[int, Floats] = {}
    for place, episode, signals in motion.episodes():
        if episode not in copies and not motion.is_damaged(episode) and len(signals[main.feature]) > 15:
            paths[place] = scaled(main, signals[main.feature])
    if len(paths) < 2:
        results.skip("variety.near_duplicates", "there are not two episodes to compare")
        return
    results.apply("variety.near_duplicates")
    generator = np.random.default_rng(0)
    some = [paths[place] for place in list(paths)[:: max(1, len(paths) // 50)]]
    places = np.asarray(list(paths))
    points = np.stack([variety.resampled(paths[place]) for place in places])
    limit, cosine = variety.copy_likeness(some, points.mean(axis=0), generator)
    groups = list(places_by_task(motion.source).values()) if len(places) > _MANY else [places]
    frames = np.asarray([len(paths[place]) for place in places.tolist()])
    pairs: list[tuple[int, int]] = []
    for group in groups:
        rows = np.flatnonzero(np.isin(places, group))
        pairs += [
            (int(places[rows[first]]), int(places[rows[second]]))
            for second, first in variety.repeats(points[rows], frames[rows], limit, cosine)
        ]
    _check_same_motion(motion, places, points, results)
    if pairs:
        episodes = motion.source.episodes
        later = sorted({int(episodes[b]) for _, b in pairs})
        results.add(
            "variety.near_duplicates",
            f"episodes {listed(later)} nearly repeat earlier ones (episode {episodes[pairs[0][1]]} repeats "
            f"{episodes[pairs[0][0]]})",
            episodes=later,
            value=float(len(pairs)),
            threshold=0.0,
            unit="pairs",
        )


def _check_same_motion(motion: Motion, places: Ints, points: Floats, results: Results) -> None:
    """Tasks with different words and the same mean path."""
    means: dict[str, Floats] = {}
    for task, group in places_by_task(motion.source).items():
        rows = np.isin(places, group)
        if rows.sum() >= _LEAST_OF_TASK and normalised(task) not in map(normalised, means):
            means[task] = points[rows].mean(axis=0)
    if len(means) < 2:
        return
    results.apply("task.same_motion")
    for first, second in itertools.combinations(list(means)[:_MOST_TASKS], 2):
        apart = float(np.sqrt(np.mean((means[first] - means[second]) ** 2)))
        if apart <= _SAME_MOTION:
            results.add(
                "task.same_motion",
                f"`{first:.60}` and `{second:.60}` are shown by the same motion ({apart:.1%} of the range apart)",
                value=round(apart, 4),
                threshold=_SAME_MOTION,
                unit="of range",
            )


def _check_contexts(motion: Motion, main: Channels, results: Results) -> None:
    places, points, grasps = start_contexts(motion, main)
    if len(places) < 2:
        results.skip("variety.contexts", "there are not two episodes to compare")
        return
    results.apply("variety.contexts")
    label = variety.clusters(points, variety.CONTEXT_RANGE)
    sizes = np.bincount(label)
    results.measure("context", _spread(motion, places, label.astype(np.float64)))
    flat = variety.two_axes(points)
    results.facts["contexts"] = {
        "clusters": len(sizes),
        "median_episodes": float(np.median(sizes)),
        "min_episodes": int(sizes.min()),
        "with_grasp": bool(grasps),
        "hull": round(variety.hull_area(flat), 5),
        "box": [round(float(value), 4) for value in np.ptp(flat, axis=0)],
        "points": [
            {
                "episode": int(motion.source.episodes[p]),
                "cluster": int(c),
                "x": round(float(x), 4),
                "y": round(float(y), 4),
            }
            for p, c, (x, y) in zip(places, label, flat, strict=True)
        ],
    }
    middle = float(np.median(sizes))
    if middle < LEAST_A_CLUSTER and len(places) >= LEAST_EPISODES:
        results.add(
            "variety.contexts",
            f"{len(places)} episodes show {len(sizes)} different start situations, in the median {middle:g} "
            f"episode{'' if middle == 1 else 's'} each; {GOOD_A_CLUSTER} are recommended",
            value=middle,
            threshold=float(LEAST_A_CLUSTER),
            unit="episodes",
        )


def start_contexts(motion: Motion, main: Channels) -> tuple[Ints, Floats, bool]:
    """Where episodes start, and where they first grasp, which stands for the place of the object.

    Returns:
        Places in `source.episodes` (E,); range-scaled contexts (E, D); whether grasps are in them.
    """
    starts: dict[int, Floats] = {}
    grasps: dict[int, Floats] = {}
    for place, episode, signals in motion.episodes():
        if episode in motion.damaged and motion.damaged[episode].all():
            continue
        position = scaled(main, signals[main.feature])
        starts[place] = (
            position[0] if motion.semantics != DELTA or main is motion.state else np.zeros(position.shape[1])
        )
        frame = _grasp_frame(motion, signals)
        if frame >= 0:
            grasps[place] = position[min(frame, len(position) - 1)]
    if not starts:
        return np.empty(0, dtype=np.int64), np.empty((0, 0)), False
    places = np.asarray(list(starts))
    points = np.stack([starts[place] for place in places.tolist()])
    with_grasp = len(grasps) > 0.8 * len(starts)
    if with_grasp:
        places = np.asarray([place for place in places if int(place) in grasps])
        points = np.stack([np.concatenate([grasps[int(p)], starts[int(p)]]) for p in places])
    return places, points, with_grasp


def _grasp_frame(motion: Motion, signals: dict[str, Floats]) -> int:
    if motion.gripper is None:
        return -1
    feature, channel, _ = motion.gripper
    channels = motion.state if feature == STATE else motion.action
    if channels is None or feature not in signals:
        return -1
    signal = (signals[feature][:, channel] - channels.stats["q01"][channel]) / channels.scale[channel]
    return gripper.first_grasp(gripper.states(signal))


def _spread(motion: Motion, places: Ints, values: Floats) -> Floats:
    found = np.full(len(motion.source.episodes), np.nan)
    found[places] = values
    return found


def _check_spread(motion: Motion, main: Channels, results: Results) -> None:
    n = len(motion.source.episodes)
    means = np.full((n, int(main.live.sum())), np.nan)
    for place, episode, signals in motion.episodes():
        if not motion.is_damaged(episode):
            means[place] = scaled(main, signals[main.feature]).mean(axis=0)
    known = np.flatnonzero(np.isfinite(means[:, 0]))
    if len(known) < LEAST_EPISODES:
        results.skip(("variety.diversity", "variety.drift"), f"comparing episodes needs {LEAST_EPISODES} of them")
        return
    results.apply("variety.diversity", "variety.drift")
    some = means[known[:: max(1, len(known) // 500)]]
    apart = np.sqrt(((some[:, None] - some[None]) ** 2).mean(axis=2))
    distance = float(apart[np.triu_indices(len(some), 1)].mean())
    contexts = results.facts.get("contexts", {})
    results.facts["diversity"] = round(distance, 4)
    if distance < _DIVERSITY and contexts.get("clusters", 0) <= 1:
        results.add(
            "variety.diversity",
            f"the demonstrations are nearly identical: their mean poses are {distance:.1%} of the range apart, and all "
            "start in the same situation",
            value=round(distance, 4),
            threshold=_DIVERSITY,
            unit="of range",
        )
    _check_drift(motion, main, means, known, results)


def _check_drift(motion: Motion, main: Channels, means: Floats, known: Ints, results: Results) -> None:
    """Start poses, by which a moved arm or camera stand shows; what is shown may be ordered on purpose."""
    starts = np.full_like(means, np.nan)
    for place, _, signals in motion.episodes():
        starts[place] = scaled(main, signals[main.feature])[0]
    values = starts[known]
    if main is motion.action and motion.semantics == DELTA:
        return
    ratio = variety.drift(values)
    quarter = max(2, len(values) // 4)
    moved = np.abs(values[-quarter:].mean(axis=0) - values[:quarter].mean(axis=0))
    bad = np.flatnonzero((ratio > _DRIFT) & (moved > _DRIFT_RANGE))
    if len(bad):
        worst = int(bad[np.argmax(ratio[bad])])
        name = f"{main.feature}[{np.asarray(main.names)[main.live][worst]}]"
        results.add(
            "variety.drift",
            f"the start pose moves over the session: `{name}` by {moved[worst]:.0%} of its range between the first and "
            "the last quarter of the episodes",
            claim=Claim.RISK,
            feature=name,
            value=round(float(ratio[worst]), 3),
            threshold=_DRIFT,
        )
