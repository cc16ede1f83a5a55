"""How large the cluster is, and how much happens in it."""

from __future__ import annotations

from dataclasses import dataclass

PRODUCTS = ("H100", "A100", "L40S", "V100", "T4")
NAMESPACES = tuple(f"team-{index}" for index in range(10))
OTHERS = "others"
"""The namespace of the pods that belong to no job."""

WORKERS = 3
"""Of each job that runs, one GPU each; with its coordinator, a job has four pods."""

GPUS_PER_NODE = 8
FULL = 0.95
SHAPES = 60


@dataclass(frozen=True)
class Sizes:
    """What one row of the result is measured at.

    Attributes:
        jobs: that run.
        waiting: jobs that wait for places.
        nodes: with eight GPUs each.
        pods: of the jobs that run and of others, together.
        minutes: for which jobs are changed.
        rate: changes per second.
        steady_minutes: for which nothing is changed.
        adapted: whether the operator adapts the jobs that run by their telemetry.
    """

    jobs: int
    waiting: int
    nodes: int
    pods: int
    minutes: float
    rate: float
    steady_minutes: float
    adapted: bool = False

    @property
    def pods_per_job(self) -> int:
        """Pods of a job that runs."""
        return WORKERS + 1

    @property
    def foreign_gpus(self) -> int:
        """GPUs that pods of others hold, so that `FULL` of the cluster is taken."""
        return round(self.nodes * GPUS_PER_NODE * FULL) - self.jobs * WORKERS

    @property
    def foreign_pods(self) -> int:
        """Pods of others."""
        return self.pods - self.jobs * self.pods_per_job

    @property
    def lives(self) -> int:
        """Jobs whose requests are counted from their creation to their end."""
        return max(5, self.jobs // 50)

    def check(self) -> None:
        """Raise if the sizes do not fit each other.

        Raises:
            ValueError: they do not.
        """
        if not self.nodes <= self.foreign_gpus <= self.foreign_pods:
            raise ValueError(
                f"{self.foreign_pods} pods of others would hold {self.foreign_gpus} GPUs on {self.nodes} "
                "nodes: there must be at least one on each node, held by a pod of its own"
            )
