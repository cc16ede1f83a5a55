"""Check an installation from within: `helm test` runs it, with a Service, a port and a number of replicas."""

from __future__ import annotations

import asyncio
import socket
import sys

import aiohttp

from gradsieve_operator import contract
from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.api import Api
from gradsieve_operator.cluster.health import RECONCILING
from gradsieve_operator.errors import ApiError, OperatorError

DEADLINE_SECONDS = 90.0
"""Replicas may have started a moment ago, and a leader that was killed is followed after 15 s."""

_CALL_SECONDS = 5.0
_PAUSE = 1.0


class NotInstalled(OperatorError):
    """Something of the installation does not work; the message says what."""


async def check(api: Api, service: str, port: int, replicas: int) -> str:
    """Check that both kinds are served, that all replicas are ready, and that one of them leads.

    Args:
        api: the server.
        service: headless Service of the operator's pods.
        port: on which they tell their health.
        replicas: how many there must be.

    Returns:
        what was found.

    Raises:
        NotInstalled: something is not so.
    """
    try:
        served = await api.get(f"/apis/{contract.API_VERSION}")
    except ApiError as error:
        raise NotInstalled(f"{contract.API_VERSION} is not served: {error}; see crds.enabled") from error
    kinds = {each["name"] for each in served["resources"]}
    if missing := {contract.JOB_PLURAL, contract.POLICY_PLURAL} - kinds:
        raise NotInstalled(f"not served: {', '.join(sorted(missing))}")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(service, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NotInstalled(f"{service}: no replica is ready ({error})") from error
    addresses = sorted({str(each[4][0]) for each in found})
    if len(addresses) != replicas:
        raise NotInstalled(f"{service}: {len(addresses)} of {replicas} replicas are ready")
    leaders = [each for each in addresses if await _leads(each, port)]
    if len(leaders) != 1:
        raise NotInstalled(f"{len(leaders)} of {replicas} replicas lead")
    return f"{replicas} replicas are ready, {leaders[0]} leads, {contract.API_VERSION} is served"


async def _leads(address: str, port: int) -> bool:
    """Return whether this replica works on jobs, and does not only wait to lead."""
    timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
    host = f"[{address}]" if ":" in address else address
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"http://{host}:{port}/healthz") as answer,
        ):
            said = await answer.text()
            if not answer.ok:
                raise NotInstalled(f"{address} is not well: {said}")
            return any(line.startswith(f"{RECONCILING}:") for line in said.splitlines())
    except (aiohttp.ClientError, TimeoutError) as error:
        raise NotInstalled(f"{address} does not answer: {error}") from error


async def _main(service: str, port: str, replicas: str) -> str:
    async with Api(Access.find()) as api:
        give_up = asyncio.get_running_loop().time() + DEADLINE_SECONDS
        while True:
            try:
                return await check(api, service, int(port), int(replicas))
            except NotInstalled as problem:
                if asyncio.get_running_loop().time() > give_up:
                    raise SystemExit(str(problem)) from problem
            await asyncio.sleep(_PAUSE)


if __name__ == "__main__":
    print(asyncio.run(_main(*sys.argv[1:])))
