"""Bring the CustomResourceDefinitions up to date: ``python3 -m gradsieve_operator.cluster.definitions``.

The chart runs it before an installation and before an upgrade.
"""

from __future__ import annotations

import asyncio
import logging

from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.api import Api, path_of
from gradsieve_operator.schema import fields_beyond, job_definition, policy_definition

SERVED_SECONDS = 60.0
"""Longest wait until the API server serves the kinds."""

_PAUSE = 0.5
_log = logging.getLogger(__name__)


async def update(api: Api) -> None:
    """Apply the definitions of this version, and return when they are served; newer ones are left alone.

    Raises:
        ApiError: the server refused one, or did not answer.
        TimeoutError: it does not serve one in time.
    """
    for definition in (job_definition(), policy_definition()):
        where, name = path_of(definition), definition["metadata"]["name"]
        found = await api.find(where)
        beyond = () if found is None else fields_beyond(found, definition)
        if beyond:
            _log.warning("%s is of a later version, which has %s: left as it is", name, ", ".join(beyond[:5]))
        else:
            await api.apply(definition)
            _log.info("%s applied", name)
        async with asyncio.timeout(SERVED_SECONDS):
            await _served(api, where)


async def _served(api: Api, where: str) -> None:
    """Return once the server serves the kind whose definition is at ``where``."""
    while True:
        conditions = ((await api.get(where)).get("status") or {}).get("conditions") or ()
        if any(each["type"] == "Established" and each["status"] == "True" for each in conditions):
            return
        await asyncio.sleep(_PAUSE)


async def _main() -> None:
    async with Api(Access.find()) as api:
        await update(api)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    asyncio.run(_main())
