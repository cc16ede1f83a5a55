"""What the operator asked the API server for, by the audit log, held against what its roles allow.

    PYTHONPATH=tests/e2e:tests/support python -m rights FOLDER

says which rights were not used in any of the runs whose logs are in the folder: runs of parts of the tests,
with GRADSIEVE_E2E_LOGS, make up a whole.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from manifests import operator_rights
from operator_process import ACCOUNT

# Of the release that tests put into another namespace.
_ELSEWHERE = "system:serviceaccount:tenants-system:gradsieve-operator"
_RIGHTS = "rbac.authorization.k8s.io"
AUDIT: list[dict[str, Any]] = [
    {"level": "Metadata", "users": [ACCOUNT, _ELSEWHERE]},
    {"level": "Metadata", "verbs": ["delete"], "resources": [{"group": _RIGHTS}]},
    {"level": "None"},
]
# Asked by the API server's admission, where it guards owner references that block a deletion.
NOT_ASKED = frozenset({("gradsieve.io", "horovodjobs/finalizers", "update")})
# Helm takes an operator's roles away together with its pods, which have half a minute to end.
_OUTLIVES = timedelta(seconds=40)
_NEVER = datetime.min.replace(tzinfo=UTC)
_CREATED = 201
_FORBIDDEN = 403

Right = tuple[str, str, str]


@dataclass
class Asked:
    """What was asked for.

    Attributes:
        used: group, resource and verb of what was allowed.
        refused: what was not, in the server's words, but to replicas that outlived their roles.
        withdrawn: when one of the operator's roles was last deleted.
    """

    used: set[Right] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    withdrawn: datetime = _NEVER

    @property
    def unused(self) -> set[Right]:
        """What the roles of the default installation allow, and nobody asked for."""
        allowed = operator_rights("ClusterRole") | operator_rights("Role")
        return allowed - self.used - NOT_ASKED


def asked(log: Path) -> Asked:
    """Read an audit log that was written by the rules of :data:`AUDIT`."""
    found = Asked()
    with log.open() as lines:
        for line in lines:
            _read(json.loads(line), found)
    return found


def in_words(unused: set[Right]) -> str:
    """Return rights in one line, such as ``patch pods``."""
    named = (f"{verb} {group}/{resource}".replace(" /", " ") for group, resource, verb in unused)
    return ", ".join(sorted(named)) or "none"


def _read(event: dict[str, Any], found: Asked) -> None:
    about, answer = event.get("objectRef"), event.get("responseStatus", {})
    if about is None:  # which versions and kinds there are, what everybody may ask
        return
    resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
    group = about.get("apiGroup", "")
    at = datetime.fromisoformat(event["requestReceivedTimestamp"])
    if group == _RIGHTS:
        if about.get("name", "").startswith("gradsieve-operator") and "-crds" not in about["name"]:
            found.withdrawn = at
    elif _is_refused(event):
        if at - found.withdrawn > _OUTLIVES:
            found.refused.append(f"{event['verb']} {group}/{resource}: {answer.get('message', '')}")
    else:
        found.used.add((group, resource, event["verb"]))
        if event["verb"] == "patch" and answer.get("code") == _CREATED:
            found.used.add((group, resource, "create"))  # applied, and was not there


def _is_refused(event: dict[str, Any]) -> bool:
    """Whether rights were lacking; a quota or a policy answers 403, too."""
    if event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid":
        return True
    answer = event.get("responseStatus", {})
    said = answer.get("message", "")
    # A server that was just told of a kind may not find it yet.
    found = "no matches for kind" not in said
    return answer.get("code") == _FORBIDDEN and "blockOwnerDeletion" in said and found


def main() -> None:
    """Judge the audit logs of several runs together."""
    parser = argparse.ArgumentParser(prog="python -m rights", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="that GRADSIEVE_E2E_LOGS named")
    logs = sorted(parser.parse_args().folder.rglob("audit.log"))
    unused = Asked(used={right for log in logs for right in asked(log).used}).unused
    print(f"of {len(logs)} audit logs; granted and not used in any of them: {in_words(unused)}")
    sys.exit(bool(unused))


if __name__ == "__main__":
    main()
