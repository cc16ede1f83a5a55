"""Mistakes of programs that are compiled here, mended in a copy of their sources while they are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError


@dataclass(frozen=True)
class Mistake:
    """One mistake in one file of a Go module.

    Attributes:
        module: path of the Go module.
        file: within it.
        wrong: what stands there, exactly once.
        right: what is to stand there.
    """

    module: str
    file: str
    wrong: str
    right: str

    def parts(self) -> list[str]:
        """Return all that decides what is compiled, for `cache.digest`."""
        return [self.module, self.file, self.wrong, self.right]


MISTAKES: Mapping[str, Mistake] = {
    # A watch that ends after some minutes, as each does, is begun anew from version 0 and not from the last
    # version seen: kwok then hears of all pods again, one after the other. With 10 000 of them and a busy API
    # server that watch ends after some seconds, before kwok is through, and so on: minutes without kubelets.
    "kwok": Mistake(
        "sigs.k8s.io/kwok",
        "pkg/utils/informer/event.go",
        "if !o.EnableListPager || o.EnableStreamWatch {",
        'if opts.ResourceVersion == "" && (!o.EnableListPager || o.EnableStreamWatch) {',
    )
}
"""Folder in `go/` -> the mistake in what is compiled from it."""


def mend(mistake: Mistake, folder: Path, scratch: Path) -> Path:
    """Copy a Go module without its mistake, and a go.mod that names the copy.

    Args:
        mistake: to be mended.
        folder: with the go.mod and go.sum that compile it as it is.
        scratch: an empty folder, for the copy.

    Returns:
        The go.mod, for `go build -modfile`.

    Raises:
        ClusterError: the module cannot be downloaded, or the mistake is not in it: it may be mended already.
    """
    found = subprocess.run(
        ["go", "mod", "download", "-json", mistake.module],
        cwd=folder,
        env={**os.environ, "GOFLAGS": ""},
        capture_output=True,
        text=True,
    )
    if found.returncode != 0:
        raise ClusterError(f"{mistake.module} is not there: {(found.stdout + found.stderr)[-1000:]}")
    copy = scratch / "module"
    # The module cache is write-protected, and so would be its copy.
    shutil.copytree(json.loads(found.stdout)["Dir"], copy, copy_function=shutil.copyfile)
    file = copy / mistake.file
    content = file.read_text()
    if content.count(mistake.wrong) != 1:
        raise ClusterError(f"{mistake.module}, {mistake.file}: the mistake to be mended is not there")
    file.write_text(content.replace(mistake.wrong, mistake.right))
    modfile = scratch / "go.mod"
    shutil.copyfile(folder / "go.sum", scratch / "go.sum")
    modfile.write_text((folder / "go.mod").read_text() + f"\nreplace {mistake.module} => {copy}\n")
    return modfile
