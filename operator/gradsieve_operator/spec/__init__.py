"""HorovodJob and CompressionPolicy: read from what the API server returns, checked, defaults applied."""

from gradsieve_operator.spec.accounts import AllowedAccounts, service_account
from gradsieve_operator.spec.compression import Compression, CompressionPolicy, JobCompression
from gradsieve_operator.spec.groups import WorkerGroup
from gradsieve_operator.spec.job import HorovodJob, Launcher, RunPolicy, Scheduling
from gradsieve_operator.spec.quantity import parse_quantity, units
from gradsieve_operator.spec.steering import Adaptation, Parallelism, Steering, SteeringFields

__all__ = [
    "Adaptation",
    "AllowedAccounts",
    "Compression",
    "CompressionPolicy",
    "HorovodJob",
    "JobCompression",
    "Launcher",
    "Parallelism",
    "RunPolicy",
    "Scheduling",
    "Steering",
    "SteeringFields",
    "WorkerGroup",
    "parse_quantity",
    "service_account",
    "units",
]
