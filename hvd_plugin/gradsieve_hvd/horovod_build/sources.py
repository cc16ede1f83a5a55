"""Fetch Horovod's released sdist through pip, with the user's own pip settings, and unpack it."""

import sys
import tarfile
from pathlib import Path

from gradsieve_hvd.horovod_build.cache import HOROVOD_VERSION

SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"


def download_command(folder: Path) -> list[str]:
    """Return the pip command that puts the sdist into `folder`; writes the requirement with its digest there.

    The digest makes an altered or replaced file an error of pip's, whatever index the user's settings name.
    """
    requirement = folder / "requirement.txt"
    requirement.write_text(f"horovod=={HOROVOD_VERSION} --hash=sha256:{SDIST_SHA256}\n", encoding="utf-8")
    return [
        sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "horovod",
        "--no-build-isolation", "--require-hashes", "--requirement", str(requirement), "--dest", str(folder),
    ]  # fmt: skip


def unpack(folder: Path) -> Path:
    """Unpack the sdist that lies in `folder` beside it and return the source tree's root.

    Its digest has been checked; Python before 3.11.4 (Debian 12's) knows no filter.
    """
    archive = folder / f"horovod-{HOROVOD_VERSION}.tar.gz"
    with tarfile.open(archive) as file:
        if hasattr(tarfile, "data_filter"):
            file.extraction_filter = tarfile.data_filter
        file.extractall(folder)  # noqa: S202 - of an archive whose digest was checked
    return folder / f"horovod-{HOROVOD_VERSION}"
