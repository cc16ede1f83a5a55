"""The operator as a whole: what runs in the background, and what wakes it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import signal
import time
from collections.abc import Coroutine

from gradsieve_operator import metrics
from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.api import Api
from gradsieve_operator.cluster.cache import Cache, JobPod, Told
from gradsieve_operator.cluster.calls import Calls
from gradsieve_operator.cluster.events import Events
from gradsieve_operator.cluster.executor import Executor
from gradsieve_operator.cluster.fence import Fence
from gradsieve_operator.cluster.health import RECONCILING, serving_health
from gradsieve_operator.cluster.lease import Lease, LeaseLost
from gradsieve_operator.cluster.missed import Missed
from gradsieve_operator.cluster.node_metrics import NodeMetrics
from gradsieve_operator.cluster.observer import Observer
from gradsieve_operator.cluster.options import Options
from gradsieve_operator.cluster.planning import Planning
from gradsieve_operator.cluster.queue import Key, WorkQueue
from gradsieve_operator.cluster.reconciler import Reconciler
from gradsieve_operator.cluster.tls import read_by_little
from gradsieve_operator.errors import ApiError, SpecError
from gradsieve_operator.placement import Load
from gradsieve_operator.resources import Neighbours
from gradsieve_operator.spec import HorovodJob
from gradsieve_operator.status import not_later, recall, waiting_since

LEASE = "gradsieve-operator"
SYNC_SECONDS = 60.0
"""Longest wait for the first lists."""

_RESYNC_SECONDS = 300.0
"""All jobs are looked at so often, whatever was forgotten."""

_log = logging.getLogger(__name__)


class Operator:
    """Everything behind the handlers.

    Args:
        options: how to run.

    Attributes:
        queue: takes the keys of jobs to look at.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self.queue = WorkQueue(self._reconcile)
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._planning: Planning | None = None
        self._reconciler: Reconciler | None = None
        self._lease: Lease | None = None
        self._cache: Cache | None = None
        self._missed = Missed()
        metrics.ask(
            self.queue.depth, self._waiting_jobs, self._places_held, lambda: self._reconciler is not None
        )

    async def start(self) -> None:
        """Read everything, wait to be the leader, and begin; when that fails, let go of everything.

        Raises:
            TimeoutError: the API server did not show in time all that has to be known.
        """
        try:
            await self._start()
        except BaseException:
            # kopf does not call `stop` for what did not start: the Lease would be held by nobody.
            await self.stop()
            raise

    async def _start(self) -> None:
        fence = Fence()
        read_by_little()
        self._api = await self._stack.enter_async_context(Api(Access.find(), fence))
        calls = await self._stack.enter_async_context(Calls(fence, self.queue.parked))
        options = self._options
        if options.health:
            health = serving_health(options.health, self.ages, self.silences)
            await self._stack.enter_async_context(health)
        neighbours = Neighbours(
            options.namespace, (("app.kubernetes.io/name", options.application),), options.cidrs
        )
        told = Told(self._job_seen, self._pod_seen, self._policy_seen, self.queue.hasten, self._pod_holds)
        self._cache = cache = Cache(self._api, options.namespaces, told)
        reflectors = cache.reflectors()
        if options.sees_nodes:
            # With namespaces of its own it follows the jobs' pods in these only.
            self._planning = Planning(self._api, self._answered, told_of_jobs_pods=not options.namespaces)
            reflectors += self._planning.reflectors()
        for each in reflectors:
            self._spawn(each.run())
        # A replica that waits to lead has all of this in hand when its turn comes.
        async with asyncio.timeout(SYNC_SECONDS):
            for each in reflectors:
                await each.synced.wait()
        # What was read stays; looking for cycles in it again and again took 7 % of the time with 10 000 pods.
        gc.collect()
        gc.freeze()
        if options.namespace:
            self._lease = Lease(self._api, options.namespace, LEASE, options.identity)
            await self._lease.acquire()
            fence.may_write = self._lease.held_lately
            self._spawn(self._lease.hold())
        signals = NodeMetrics(options.prometheus) if options.prometheus else None
        if signals is not None:
            self._spawn(signals.run())
        observer = Observer(
            self._api,
            cache,
            calls,
            self._planning,
            neighbours,
            options.accounts,
            options.pace,
            self.queue.crowded,
            dict if signals is None else signals.words,
        )
        executor = Executor(self._api, cache, self._planning)
        events = Events(self._api)
        self._reconciler = Reconciler(self._api, cache, observer, executor, events, self._planning)
        self._spawn(events.run())
        self._reconciler.read_again(cache.jobs())
        if self._planning is not None:
            await self._line_up(self._planning, cache)
            self._spawn(self._planning.run())
        for key in self._missed.jobs(filter(cache.unanswered, cache.jobs())):
            self.queue.add(key)
        self._spawn(self.queue.run())
        self._spawn(self._recheck(cache))

    async def stop(self) -> None:
        """End, and let another replica begin."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._lease is not None:
            with contextlib.suppress(ApiError):
                await self._lease.release()
        await self._stack.aclose()

    def ages(self) -> dict[str, float]:
        """Return for how many seconds each part has stood still; nothing before there are any."""
        if self._cache is None:
            return {}
        now = time.monotonic()
        ages = self._cache.ages(now)
        if self._reconciler is not None:
            ages[RECONCILING] = self.queue.behind()
        if self._planning is not None:
            ages |= self._planning.ages(now)
        return ages

    def silences(self) -> dict[str, float]:
        """Return for how many seconds the API server was not heard of.

        An operator without a Lease never waits for it: what it hears is in `ages`.
        """
        if not self._options.namespace:
            return {}
        return {"API server": math.inf if self._lease is None else self._lease.silence}

    def _waiting_jobs(self) -> int:
        return 0 if self._planning is None else self._planning.waiting()

    def _places_held(self) -> int:
        return 0 if self._planning is None else self._planning.places_held()

    def _job_seen(self, key: Key) -> None:
        if self._reconciler is not None:
            self.queue.add(key, asked=self._cache is not None and self._cache.unanswered(key))

    def _pod_seen(self, pod: JobPod) -> None:
        if self._planning is not None:
            self._planning.pods_changed()
        if self._reconciler is not None:
            self._reconciler.pod_seen(pod)
            self.queue.soon(pod.job)
        else:
            self._missed.pod_seen(pod.job)

    def _pod_holds(self, pod: str, load: Load | None) -> None:
        if self._planning is not None and not self._options.namespaces:
            self._planning.hold(pod, load)

    def _policy_seen(self, namespace: str) -> None:
        """Look at the jobs that may use a policy of ``namespace``."""
        if self._reconciler is not None and self._cache is not None:
            for key in self._cache.jobs(namespace):
                self.queue.add(key)

    async def _reconcile(self, key: tuple[str, str]) -> float | None:
        assert self._reconciler is not None
        with metrics.reconciling():
            return await self._reconciler.reconcile(key)

    async def _line_up(self, planning: Planning, cache: Cache) -> None:
        """Have the planner know all jobs that wait for places before any job is looked at.

        Nobody may slip past them, nor one of them past another, because we have just started.
        """
        for body in cache.bodies():
            if waiting_since(body.get("status") or {}) is not None:
                # What is wrong with a job is said when it is looked at.
                with contextlib.suppress(SpecError):
                    job, progress = HorovodJob.parse(body), recall(body["status"])
                    if job.scheduling.planned and not job.suspend:
                        planning.line_up(job, not_later(progress, self._api.clock.now()))
                await asyncio.sleep(0)

    async def _recheck(self, cache: Cache) -> None:
        while True:
            await self.queue.recheck_all(cache.jobs())
            await asyncio.sleep(_RESYNC_SECONDS)

    def _answered(self, keys: list[Key]) -> None:
        """Have waiting jobs looked at for which the planner has news."""
        for key in keys:
            self.queue.add(key)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """End the process when a part of it has ended: half an operator is worse than a restarted one."""
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, LeaseLost):
            _log.warning("the lease was lost")
        else:
            _log.error("a part of the operator has ended", exc_info=error)
        for other in self._tasks:
            other.cancel()
        signal.raise_signal(signal.SIGTERM)
