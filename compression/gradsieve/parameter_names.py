"""Names of parameters with and without what wrappers put into them.

``torch.compile(model)`` makes ``_orig_mod.fc.weight`` of ``fc.weight``, DistributedDataParallel
``module.fc.weight``; both may wrap a part of the model, too. A state saved with a wrapper shall load without
it, and conversely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gradsieve.errors import ConfigurationError

_OF_WRAPPERS = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def unwrapped(name: str) -> str:
    """Return a parameter's name without the components that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in _OF_WRAPPERS)


def matching(saved: Iterable[str], present: Iterable[str]) -> dict[str, str]:
    """Return for every saved name that has one the present name it belongs to.

    1. A name that is present is itself, wrappers or not.
    2. Of the others, those belong together that are equal without what wrappers add.

    Raises:
        ConfigurationError: two names would belong to one, or one to two.
    """
    saved, present = list(saved), list(present)
    found = {name: name for name in set(saved) & set(present)}
    left = [name for name in saved if name not in found]
    free = [name for name in present if name not in found]
    wanted = {unwrapped(name) for name in left} & {unwrapped(name) for name in free}
    for names in (left, free):
        twice = [core for core, count in Counter(map(unwrapped, names)).items() if count > 1]
        for core in wanted.intersection(twice):
            raise _ambiguous(core, names)
    by_core = {unwrapped(name): name for name in free}
    return found | {name: by_core[unwrapped(name)] for name in left if unwrapped(name) in by_core}


def _ambiguous(core: str, names: Iterable[str]) -> ConfigurationError:
    alike = ", ".join(f"'{name}'" for name in names if unwrapped(name) == core)
    return ConfigurationError(
        f"{alike} are one name, '{core}', without what torch.compile and wrappers of models add; load the "
        "state into the model wrapped as it was when it was saved"
    )
