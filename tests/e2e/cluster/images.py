"""The images that pods of the tests run, as OCI archives in the cache."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from cluster.binaries import program
from cluster.cache import built_once, digest
from cluster.debian import debian_root
from cluster.oci import write_archive
from cluster.template import PAUSE_IMAGE, Template, build_template

PAUSE = PAUSE_IMAGE
BASE = "localhost/gradsieve/python-base:1"
_NOBODY = "65535:65535"


def template() -> Template:
    """Return the store of images that every node starts with: the one that waits, and the small Debian."""
    return build_template([pause_archive(), base_archive()])


def pause_archive() -> Path:
    """Return the archive of an image that only waits: for sandboxes, and pods whose work does not matter."""
    pause = program("pause")

    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as root:
            shutil.copy(pause, root)
            configuration = {"Entrypoint": ["/pause"], "User": _NOBODY}
            write_archive(folder / "image.tar", PAUSE, Path(root), configuration)

    return built_once("pause-image", digest([PAUSE, pause.read_bytes()]), build) / "image.tar"


def base_archive() -> Path:
    """Return the archive of the small Debian with Python that stands in for a training image."""
    root = debian_root()

    def build(folder: Path) -> None:
        configuration = {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"], "Cmd": ["python3"]}
        write_archive(folder / "image.tar", BASE, root, configuration)

    return built_once("base-image", digest([BASE, root.name]), build) / "image.tar"
