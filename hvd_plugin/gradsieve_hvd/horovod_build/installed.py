"""What the Horovod in this environment was built from, as its wheel tells."""

import importlib.metadata
import json
from collections.abc import Mapping

from gradsieve.errors import BuildError
from gradsieve_hvd.horovod_build.environment import find_torch
from gradsieve_hvd.horovod_build.patches import RECIPE
from gradsieve_hvd.horovod_build.repair import PROVENANCE

_REMEDY = "run: gradsieve build-horovod"


def installed_facts() -> dict[str, str] | None:
    """Return the facts of the installed Horovod; None without any, or if another program built it."""
    try:
        note = importlib.metadata.distribution("horovod").read_text(PROVENANCE)
    except importlib.metadata.PackageNotFoundError:
        return None
    return None if note is None else dict(json.loads(note))


def is_installed(facts: Mapping[str, str]) -> bool:
    """Return whether the Horovod in this environment is the one that `facts` describe."""
    return installed_facts() == facts


def reason_to_rebuild() -> str | None:
    """Return a line if the installed Horovod is of an older recipe or for another torch, or None.

    Only a Horovod that this package built is judged: nothing is known of others.
    """
    facts = installed_facts()
    if facts is None:
        return None
    try:
        torch = find_torch().version
    except BuildError:
        return None
    if facts["torch"] != torch:
        return f"Horovod was built for torch {facts['torch']}, here is {torch}: it may not load; {_REMEDY}"
    if int(facts["recipe"]) < RECIPE:
        return (
            f"Horovod was built by recipe {facts['recipe']} of gradsieve, recipe {RECIPE} has fewer faults; "
            f"{_REMEDY}"
        )
    return None
