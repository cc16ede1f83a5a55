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
    """One mistake in a file of a Go module.

    Attributes:
        file: within the module.
        wrong: what stands there, exactly once.
        right: what is to stand there.
    """

    file: str
    wrong: str
    right: str


@dataclass(frozen=True)
class Mended:
    """A Go module without its mistakes.

    Attributes:
        module: its path.
        mistakes: that are mended.
    """

    module: str
    mistakes: tuple[Mistake, ...]

    def parts(self) -> list[str]:
        """Return all that decides what is compiled, for `cache.digest`."""
        return [
            self.module,
            *(part for each in self.mistakes for part in (each.file, each.wrong, each.right)),
        ]


MENDED: Mapping[str, Mended] = {
    "kwok": Mended(
        "sigs.k8s.io/kwok",
        (
            # A watch that ends after some minutes, as each does, is begun anew from version 0 and not from
            # the last version seen: kwok then hears of all pods again, one after the other. With 10 000 of
            # them and a busy API server that watch ends after some seconds, before kwok is through, and so
            # on: minutes without kubelets.
            Mistake(
                "pkg/utils/informer/event.go",
                "if !o.EnableListPager || o.EnableStreamWatch {",
                'if opts.ResourceVersion == "" && (!o.EnableListPager || o.EnableStreamWatch) {',
            ),
            # The deletion of a pod under which the API server dies is never made again, until kwok happens
            # to hear of that pod once more. What is no answer of the server's is worth another try.
            Mistake(
                "pkg/kwok/controllers/utils.go",
                "\t// ignore all other cases\n\treturn false\n",
                "\t// ignore all other answers\n"
                '\treturn apierrors.ReasonForError(err) == "" || apierrors.IsInternalError(err)\n',
            ),
        ),
    )
}
"""Folder in `go/` -> the module that is mended before it is compiled from there."""


def mend(mended: Mended, folder: Path, scratch: Path) -> Path:
    """Copy a Go module without its mistakes, and a go.mod that names the copy.

    Args:
        mended: the module.
        folder: with the go.mod and go.sum that compile it as it is.
        scratch: an empty folder, for the copy.

    Returns:
        The go.mod, for `go build -modfile`.

    Raises:
        ClusterError: the module cannot be downloaded, or a mistake is not in it: it may be mended already.
    """
    found = subprocess.run(
        ["go", "mod", "download", "-json", mended.module],
        cwd=folder,
        env={**os.environ, "GOFLAGS": ""},
        capture_output=True,
        text=True,
    )
    if found.returncode != 0:
        raise ClusterError(f"{mended.module} is not there: {(found.stdout + found.stderr)[-1000:]}")
    copy = scratch / "module"
    # The module cache is write-protected, and so would be its copy.
    shutil.copytree(json.loads(found.stdout)["Dir"], copy, copy_function=shutil.copyfile)
    for mistake in mended.mistakes:
        file = copy / mistake.file
        content = file.read_text()
        if content.count(mistake.wrong) != 1:
            raise ClusterError(f"{mended.module}, {mistake.file}: the mistake to be mended is not there")
        file.write_text(content.replace(mistake.wrong, mistake.right))
    modfile = scratch / "go.mod"
    shutil.copyfile(folder / "go.sum", scratch / "go.sum")
    modfile.write_text((folder / "go.mod").read_text() + f"\nreplace {mended.module} => {copy}\n")
    return modfile
