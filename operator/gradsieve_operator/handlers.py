"""kopf's side of the operator: its process. Run with ``kopf run -m gradsieve_operator``."""

from __future__ import annotations

import os
import sys
from typing import Any

import aiohttp
import kopf

from gradsieve_operator import transitions
from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.operator import Operator
from gradsieve_operator.cluster.options import Options

_REQUEST_SECONDS = 30.0

_OPTIONS = Options.read(os.environ)
operator = Operator(_OPTIONS)


@kopf.on.login()
async def login(**_: Any) -> kopf.AiohttpSession:
    """Have kopf reach the API server as the operator does: by itself it refuses clusters that are well."""
    access = Access.find()
    connector = aiohttp.TCPConnector(ssl=access.tls or True)
    session = aiohttp.ClientSession(connector=connector, headers=access.headers())
    return kopf.AiohttpSession(server=access.url, aiohttp_session=session)


# kopf would try again for ever, in a process that looks alive; one that ends is started anew by its kubelet.
@kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)
async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Configure kopf, then wait to be the leader, and begin."""
    configure(settings)
    if _OPTIONS.transitions:
        transitions.write_to(sys.stdout)
    await operator.start()


@kopf.on.cleanup()
async def stop(**_: Any) -> None:
    """Let go of everything."""
    await operator.stop()


def configure(settings: kopf.OperatorSettings) -> None:
    """Set what differs from kopf's defaults: it starts and ends the operator, and watches nothing itself.

    Its watches would hold every object whole, and tell neither what was lost between two of them nor that
    one has died; see `gradsieve_operator.cluster.cache`.
    """
    settings.scanning.disabled = True
    settings.networking.request_timeout = _REQUEST_SECONDS
    settings.networking.connect_timeout = _REQUEST_SECONDS / 3
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = 30.0
