"""A job's certificates are issued, and written to its Secrets."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Iterable
from dataclasses import replace

from gradsieve_operator import contract, resources
from gradsieve_operator.certificates import issue
from gradsieve_operator.cluster.api import Api, path_of
from gradsieve_operator.cluster.making import Maker
from gradsieve_operator.cluster.memory import Memory
from gradsieve_operator.cluster.secrets import note_secrets, whole_secrets
from gradsieve_operator.decide import IssueCertificates, RenewCertificates
from gradsieve_operator.errors import OperatorError
from gradsieve_operator.resources import Manifest
from gradsieve_operator.spec import HorovodJob

_log = logging.getLogger(__name__)


class NotKept(OperatorError):
    """What was written is not what the server keeps: to write it again would change nothing.

    Args:
        names: of the Secrets.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(
            f"Secret {', '.join(names)} is damaged as soon as it is written: find out which webhook or "
            f"controller changes it, and exempt Secrets with the label {contract.LABEL_JOB}"
        )


class Certifier:
    """Issues certificates and keeps them in Secrets.

    Args:
        api: the server.
        maker: of the Secrets.
    """

    def __init__(self, api: Api, maker: Maker) -> None:
        self._api, self._maker = api, maker

    async def certify(
        self, action: IssueCertificates | RenewCertificates, job: HorovodJob, memory: Memory
    ) -> None:
        """Issue all of a job's certificates, or those anew whose Secrets are lost or damaged.

        Args:
            action: which.
            job: that they are of.
            memory: what is known of its Secrets; takes what was written.

        Raises:
            NotKept: a Secret is damaged as soon as it is written.
            NotOurs: a Secret's name is taken.
            ApiError: the server did not take one.
        """
        now, lost = dt.datetime.fromtimestamp(self._api.clock.now(), dt.UTC), memory.held.lost
        renews = isinstance(action, RenewCertificates)
        hosts = () if renews and contract.workers_secret(job.name) not in lost else action.hosts
        # Hundreds of keys take a noticeable time, which the other jobs should not wait for.
        made = await asyncio.to_thread(issue, job.name, job.namespace, hosts, now)
        if renews:
            _log.info("%s/%s: lost or damaged, made again: %s", job.namespace, job.name, ", ".join(lost))
            made = replace(made, authority=memory.held.bundle + made.authority)
            whole = await whole_secrets(self._api, job, memory)
            secrets = resources.renewed_secrets(job, whole, lost, made, now)
        else:
            secrets = resources.certificate_secrets(job, made)
        # Should a write fail, what is there is read before the next one.
        written, memory.secrets_read_at = {}, None
        for secret in secrets:
            name = secret["metadata"]["name"]
            known = memory.secrets.get(name)
            uid = None if known is None else known["metadata"]["uid"]
            written[name] = await self._only(secret, await self._maker.apply(secret, job, uid))
        await note_secrets(job, memory, written)
        if memory.held.lost:
            raise NotKept(memory.held.lost)

    async def _only(self, secret: Manifest, made: Manifest) -> Manifest:
        """Take from a Secret what others have added, which applying leaves there; returns what is left.

        It may be what has damaged the Secret.
        """
        added = (made.get("data") or {}).keys() - secret["data"].keys()
        if not added:
            return made
        change = {"metadata": {"uid": made["metadata"]["uid"]}, "data": dict.fromkeys(added)}
        return await self._api.merge(path_of(secret), change)
