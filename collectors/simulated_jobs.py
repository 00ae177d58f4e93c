"""The training jobs of a simulated fleet: when they run on a host, and how much they ask of its devices."""

from __future__ import annotations

import math
from random import Random

from msgspec import Struct

SECOND = 1_000_000_000
WORKLOADS = (("dlrm", "ads"), ("llm-pretrain", "foundation"), ("hstu", "ranking"), ("finetune", "research"))
RAMP_SECONDS = 20.0
CHECKPOINT_SECONDS = 600.0
CHECKPOINT_LASTS_SECONDS = 20.0


class Job(Struct, frozen=True):
    """One job on all devices of one host."""

    name: str
    tenant: str
    workload: str
    started_at: int
    ends_at: int
    intensity: float
    wave_seconds: float
    memory_share: float

    def level(self, at: int) -> float:
        """Return the load at a time, 0 to 1: a ramp, then waves of phases, with dips for checkpoints."""
        seconds = (at - self.started_at) / SECOND
        level = self.intensity * (1 + 0.05 * math.sin(2 * math.pi * seconds / self.wave_seconds))
        if seconds < RAMP_SECONDS:
            level *= 0.2 + 0.8 * seconds / RAMP_SECONDS
        elif seconds % CHECKPOINT_SECONDS < CHECKPOINT_LASTS_SECONDS:
            level *= 0.25
        return min(1.0, level)


class Jobs:
    """The jobs of one host, one after the other."""

    def __init__(self, random: Random, host: str) -> None:
        self._random = random
        self._host = host
        self._next_at: int | None = None
        self.number = 0
        self.job: Job | None = None

    def start(self, at: int) -> Job | None:
        """Start the next job if it is due."""
        if self._next_at is None:
            self._next_at = at + int(self._random.choice((0.0, 0.0, 0.0, 120.0)) * SECOND)
        if at < self._next_at:
            return None
        random = self._random
        self.number += 1
        workload, tenant = random.choice(WORKLOADS)
        self.job = Job(
            name=f"{self._host}.{self.number}",
            tenant=tenant,
            workload=workload,
            started_at=at,
            ends_at=at + int(min(max(random.lognormvariate(8.2, 0.7), 600.0), 36_000.0) * SECOND),
            intensity=random.uniform(0.82, 1.0),
            wave_seconds=random.uniform(40.0, 200.0),
            memory_share=random.uniform(0.6, 0.93),
        )
        return self.job

    def stop(self, at: int) -> Job | None:
        """End the job, if one runs, and let some minutes pass before the next."""
        job, self.job = self.job, None
        if job is not None:
            self._next_at = at + int(self._random.uniform(30.0, 420.0) * SECOND)
        return job
