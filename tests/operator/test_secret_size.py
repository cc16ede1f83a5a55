"""The largest job's certificates fit into one Secret."""

import datetime as dt

from gradsieve_operator import contract
from gradsieve_operator.certificates import issue
from gradsieve_operator.spec.values import MAX_GROUP_NAME, MAX_JOB_NAME, MAX_WORKERS

LIMIT = 1024**2
"""Bytes that the API server takes in all values of a Secret."""


def test_twice_the_most_workers_under_the_longest_names_are_within_the_limit():
    hosts = [contract.worker_host("g" * MAX_GROUP_NAME, index) for index in (998, 999)]
    found = issue("j" * MAX_JOB_NAME, "n" * 63, hosts, dt.datetime.now(dt.UTC))
    each = max(len(identity.certificate) + len(identity.key) for identity in found.workers.values())
    assert 2 * MAX_WORKERS * each < LIMIT
