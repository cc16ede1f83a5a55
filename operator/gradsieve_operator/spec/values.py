"""The words and limits of the API: what the schemas promise and the parser checks."""

from __future__ import annotations

import re
from typing import Final, Literal, get_args

Backend = Literal["MPI", "Gloo"]
Gang = Literal["Planned", "None"]
Placement = Literal["Fastest", "Pack", "Spread"]
CleanPodPolicy = Literal["Running", "All", "None"]
Algorithm = Literal["None", "FP16", "TopK", "GroupTopK", "Sampled", "Laplace", "Layered", "Importance"]
Mode = Literal[
    "Auto",
    "Synchronous",
    "Balanced",
    "Local",
    "BoundedStaleness",
    "DynamicBoundedStaleness",
    "Asynchronous",
    "Adaptive",
]

BACKENDS: Final[tuple[Backend, ...]] = get_args(Backend)
GANGS: Final[tuple[Gang, ...]] = get_args(Gang)
PLACEMENTS: Final[tuple[Placement, ...]] = get_args(Placement)
CLEAN_POD_POLICIES: Final[tuple[CleanPodPolicy, ...]] = get_args(CleanPodPolicy)
ALGORITHMS: Final[tuple[Algorithm, ...]] = get_args(Algorithm)
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
BOUNDED_MODES: Final[tuple[Mode, ...]] = ("BoundedStaleness", "DynamicBoundedStaleness")
DENSE_ALGORITHMS: Final[tuple[Algorithm, ...]] = (
    "None",
    "FP16",
)  # send every entry: a density has no meaning
BOUNDED_ALGORITHMS: Final[tuple[Algorithm, ...]] = ("Layered", "Importance")  # choose densities themselves

MAX_GROUPS: Final = 16
MAX_WORKERS: Final = 256
"""Twice as many certificates, so that a job may grow, fit into one Secret of at most 1 MiB."""
MAX_SLOTS: Final = 64
MAX_GPU_PRODUCTS: Final = 16
MAX_BACKOFF: Final = 1000
MAX_SECONDS: Final = 31_536_000
MAX_DENSITY: Final = 1000
MAX_STALENESS: Final = 1000
MAX_LOCAL_STEPS: Final = 1000
MIN_INTERVAL, MAX_INTERVAL = 15, 86_400
MAX_HYSTERESIS: Final = 100
MIN_SAMPLES, MAX_SAMPLES = 2, 30
"""What a plan is judged by; the coordinator keeps a few more than the most that may be asked for."""

DNS_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
"""A job's and a group's name: both become parts of host names, and a Service's name starts with a letter."""
MAX_JOB_NAME: Final = 63
MAX_GROUP_NAME: Final = 40
OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MAX_OBJECT_NAME: Final = 253
LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
MAX_LABEL_VALUE: Final = 63
RESERVED_GROUP: Final = "coordinator"
