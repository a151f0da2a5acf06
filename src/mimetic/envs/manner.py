"""How an operator moves: the numbers in which a careful and a sloppy one differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Manner:
    """Habits of an operator.

    Args:
        name: for listings.
        speed_m_s: usual speed of the hand, smallest and largest for an episode [m/s].
        above_m: height above a thing from which it is approached [m].
        tilt: largest slant of the gripper from straight down [rad].
        aim_m: standard deviation of where a thing is believed to be [m].
        pause_chance: chance of a pause before a movement.
        pause_ticks: shortest and longest pause.
        correction_chance: chance that a movement first ends a little beside its end.
        tremor: standard deviation of a slow tremor of the goals [rad].
        idle_ticks: shortest and longest wait before the first movement.
        retries: how often a missed grasp is tried again.
        wrong_goal_chance: chance that an episode is spent on the wrong thing or place.
        jerk: 0 moves smoothly, 1 starts and stops at full speed.
    """

    name: str
    speed_m_s: tuple[float, float] = (0.12, 0.20)
    above_m: tuple[float, float] = (0.045, 0.075)
    tilt: float = 0.10
    aim_m: float = 0.001
    pause_chance: float = 0.06
    pause_ticks: tuple[int, int] = (3, 10)
    correction_chance: float = 0.15
    tremor: float = 0.0015
    idle_ticks: tuple[int, int] = (0, 4)
    retries: int = 2
    wrong_goal_chance: float = 0.0
    jerk: float = 0.0


IDEAL = Manner(
    name="ideal",
    speed_m_s=(0.16, 0.16),
    above_m=(0.06, 0.06),
    tilt=0.0,
    aim_m=0.0,
    pause_chance=0.0,
    correction_chance=0.0,
    tremor=0.0,
    idle_ticks=(0, 0),
)
"""The same plan every time; for tests."""
CAREFUL = Manner(name="careful")
"""A practised person: varies in speed, height, angle; corrects a little; looks before grasping."""
SLOPPY = Manner(
    name="sloppy",
    speed_m_s=(0.10, 0.32),
    above_m=(0.03, 0.10),
    tilt=0.25,
    aim_m=0.007,
    pause_chance=0.35,
    pause_ticks=(6, 30),
    correction_chance=0.4,
    tremor=0.012,
    idle_ticks=(20, 70),
    retries=1,
    wrong_goal_chance=0.15,
    jerk=0.8,
)
"""Starts late, hesitates, jerks, misses, sometimes does the wrong thing; for testing checks of datasets."""
MANNERS = {manner.name: manner for manner in (IDEAL, CAREFUL, SLOPPY)}
