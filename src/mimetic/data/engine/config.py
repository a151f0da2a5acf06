"""Settings of work that is spread over processes or machines."""

from __future__ import annotations

from dataclasses import dataclass

from mimetic.fields import setting

ENGINES = ("auto", "serial", "pool", "ray")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Who does the work. A command's settings inherit from it, so that every command has the same flags."""

    engine: str = setting(
        "auto",
        "Who does the work: this process (serial), processes of this machine (pool), a Ray cluster (ray); auto takes "
        "a pool when there is more than one core and more than one part",
        choices=ENGINES,
        layer="mimetic",
    )
    num_workers: int = setting(
        0, "Parts worked on at once; 0 takes one for each core (ray: what the cluster offers)", layer="mimetic"
    )
    address: str | None = setting(
        None,
        "Address of the Ray cluster, such as `auto` or `ray://head:10001`; without it a local one is started",
        layer="mimetic",
    )

    def engine_problems(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = []
        if self.num_workers < 0:
            problems.append(f"`--num_workers={self.num_workers}` must be 0 or more")
        if self.engine in ("serial", "pool") and self.address is not None:
            problems.append(f"`--address={self.address}` goes with `--engine=ray`, not with `--engine={self.engine}`")
        if self.engine == "serial" and self.num_workers > 1:
            problems.append(f"`--engine=serial` works on one part at a time, not on {self.num_workers}")
        return problems
