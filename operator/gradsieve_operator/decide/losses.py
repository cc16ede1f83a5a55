"""Restarts of a started job: which of them count against it, and how long to wait before the next one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradsieve_operator import contract
from gradsieve_operator.decide.actions import Decision, Reason, Record
from gradsieve_operator.decide.admission import placed
from gradsieve_operator.decide.endings import delete, finish, restart_whole
from gradsieve_operator.decide.members import expected, latest_generation, loss, newest, node_lost
from gradsieve_operator.decide.observed_state import ObservedState, Pod
from gradsieve_operator.decide.progress import Progress

_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
"""Seconds before what has failed is started again: it may well fail for the same reason."""

_LONGEST_DISRUPTION_PAUSE = 60.0
"""Seconds at most before what was evicted is made again: whoever evicts goes on, or makes room meanwhile."""

_AFTERMATH_SECONDS = 60.0
"""Ranks that fail so soon after a disruption, and before they were started again, fail for that."""

_WELL_SECONDS = 600.0
"""Ranks that have run for so long without a loss run well: earlier failures do not count any more."""


def count_losses(observed: ObservedState) -> Decision | None:
    """Take note of members that are newly lost, all together as one restart; None when there are none.

    1. A pod that was evicted, preempted or taken from its node, and one whose node is lost, is a disruption:
       it never ends the job. If it comes again and again, its replacement waits longer each time.
    2. What is lost together with such a pod belongs to it, and so does a coordinator that ends for it.
    3. Everything else is a failure, of which ``backoffLimit`` allows a number.
    """
    last = newest(observed.pods)
    why = {
        host: reason
        for host in expected(observed)
        if (reason := loss(last.get(host), host, observed)) is not None
    }
    if not why:
        return None
    disrupted = [host for host in why if _disrupted(last.get(host), host, observed)]
    progress = rested(observed.progress, observed.now)
    if disrupted:
        progress = replace(progress, disruptions=progress.disruptions + 1, disrupted_at=observed.now)
        pause = _disruption_pause(progress)
    else:
        pause = _pause([last[host] for host in why if host in last], progress)
    progress = replace(
        progress,
        absent=tuple(sorted({*progress.absent, *why})),
        given_up=latest_generation(observed),
        placement_failures=0,
        retry_at=observed.now + pause,
    )
    doomed = [last[host] for host in why if host in last]
    reason = why[(disrupted or list(why))[0]]
    free = bool(disrupted) or (set(why) == {contract.COORDINATOR_HOST} and _aftermath(observed))
    return another_restart(replace(observed, progress=progress), reason, doomed=doomed, free=free)


def another_restart(
    observed: ObservedState,
    reason: Reason,
    *,
    whole: bool = False,
    doomed: Iterable[Pod] = (),
    free: bool = False,
) -> Decision:
    """Restart, or end the job when it has failed too often; deletes what can no longer take part.

    Args:
        observed: with the progress to go on from.
        reason: why.
        whole: whether all pods go.
        doomed: otherwise, those that go.
        free: whether it is not for a failure of the job's own.
    """
    limit, progress = observed.job.run_policy.backoff_limit, rested(observed.progress, observed.now)
    if not free and progress.failures >= limit:
        said = f"{reason.message}; it had failed {limit} times before (spec.runPolicy.backoffLimit)"
        return finish(observed, Reason("BackoffLimitExceeded", said), succeeded=False)
    progress = replace(progress, restarts=progress.restarts + 1)
    if not free:
        progress = replace(progress, failures=progress.failures + 1, failed_at=observed.now)
    counted = replace(observed, progress=progress)
    if whole:
        return restart_whole(counted, reason)
    # Counted before anything is deleted: what is gone cannot be counted any more.
    deletions = [delete(pod, observed) for pod in doomed if pod.occupies]
    return Decision((Record(), *deletions), progress, admitted=placed(), degraded=reason, requeue_after=0.0)


def ranks_lost(observed: ObservedState, message: str) -> Decision:
    """Restart ranks that were lost although all members are well."""
    return another_restart(observed, Reason("RanksLost", message), free=_aftermath(observed))


def rested(progress: Progress, now: float) -> Progress:
    """Return ``progress`` without its failures and disruptions, if ranks have run well since."""
    if not progress.running or not (progress.failures or progress.disruptions):
        return progress
    since = max(progress.changed or 0.0, progress.failed_at or 0.0, progress.disrupted_at or 0.0)
    if now - since < _WELL_SECONDS:
        return progress
    return replace(progress, failures=0, disruptions=0)


def _disrupted(pod: Pod | None, host: str, observed: ObservedState) -> bool:
    """Whether the member at ``host`` was lost through no fault of its own, as far as anybody has seen."""
    pod = observed.departed.get(host) if pod is None else pod
    return pod is not None and (bool(pod.disruption) or node_lost(pod, observed) is not None)


def _aftermath(observed: ObservedState) -> bool:
    """Whether ranks that fail now still fail for the last disruption."""
    progress = observed.progress
    if progress.disrupted_at is None or observed.now - progress.disrupted_at >= _AFTERMATH_SECONDS:
        return False
    return not progress.running or (progress.changed or 0.0) <= progress.disrupted_at


def _disruption_pause(progress: Progress) -> float:
    """Return for how long what was evicted is not replaced: at once, then after 1 s, 2 s, 4 s …"""
    if progress.disruptions <= 1:
        return 0.0
    return min(_LONGEST_DISRUPTION_PAUSE, 2.0 ** min(progress.disruptions - 2, 10))


def _pause(lost: Iterable[Pod], progress: Progress) -> float:
    """Return for how many seconds lost pods are not replaced: the longest that one of them calls for.

    1. A coordinator that came to an orderly end: its program has failed, and waits longer each time.
    2. A worker whose container ended: likewise, but at once the first time. Without a pause, one
       that fails as it starts would use up ``backoffLimit`` within seconds.
    3. Whatever else is lost: nothing speaks against another pod at once.
    """
    return max((_pause_after(pod, progress) for pod in lost), default=0.0)


def _pause_after(pod: Pod, progress: Progress) -> float:
    if not pod.over or pod.host in progress.absent:
        return 0.0
    if pod.host == contract.COORDINATOR_HOST:
        counts, earlier = bool(pod.message), progress.failures
    else:
        counts, earlier = not pod.deleting and progress.failures > 0, progress.failures - 1
    return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(earlier, 10)) if counts else 0.0
