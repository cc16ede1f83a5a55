"""What can go wrong with a test cluster."""

from __future__ import annotations


class ClusterError(Exception):
    """A cluster could not be built, started or steered; the message says what, where, and what to look at."""


class ClusterUnavailable(ClusterError):
    """This machine cannot carry a cluster: the message lists everything that is missing."""
