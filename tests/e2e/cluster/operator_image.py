"""The operator's image, built by buildah from its Dockerfile on the small Debian."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cluster.cache import built_once, digest, file_parts
from cluster.python import source_folder
from cluster.script import run_alone

OPERATOR = "localhost/gradsieve/operator:e2e"
_DOCKERFILE = "operator.Dockerfile"
_BUILD_SECONDS = 1800
# What of pip's configuration says how to reach packages; the rest is this machine's alone.
_REACHING = {"index-url", "extra-index-url", "trusted-host", "cert", "proxy", "timeout", "retries"}


def operator_archive(base: Path, base_name: str) -> Path:
    """Return the archive of the operator's image, built when Dockerfile, versions, sources or base are new.

    Args:
        base: the OCI archive of what stands in for the Dockerfile's own base, which is not on this machine.
        base_name: that image's name.

    Raises:
        ClusterError: buildah failed.
    """
    root = source_folder()
    copied = [root / _DOCKERFILE, root / "pyproject.toml", root / "constraints.txt"]
    sources = [path for path in (root / "operator").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    key = digest([OPERATOR, base.parent.name, *file_parts(root, [*copied, *sources])])
    # More than of other things: the operator's sources differ from clone to clone.
    entry = built_once("operator-image", key, lambda folder: _build(folder, base, base_name), keep=6)
    return entry / "image.tar"


def _build(folder: Path, base: Path, base_name: str) -> None:
    """Build in a store in memory that exists only meanwhile.

    1. Bring the base into the store.
    2. Build with the network, certificates and pip configuration of this machine, without a trace of them.
    3. Write the image as an archive. Its lowest layer is the base's, which nodes need not unpack again.
    """
    print("cluster: building the operator's image", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        context, settings = Path(scratch, "context"), Path(scratch, "pip.conf")
        _copy_context(context)
        volumes = [f"{settings}:/etc/pip.conf:ro"]
        if (certificates := _write_pip_settings(settings)) is not None:
            volumes.append(f"{certificates}:{certificates}:ro")
        store = Path(scratch, "store")
        store.mkdir()
        buildah = [
            "buildah",
            "--root",
            f"{store}/root",
            "--runroot",
            f"{store}/run",
            "--storage-driver",
            "vfs",
        ]
        options = [
            "--isolation",
            "chroot",
            "--network",
            "host",
            "--pull-never",
            "--build-arg",
            f"BASE={base_name}",
        ]
        mounts = [word for volume in volumes for word in ("--volume", volume)]
        source = ["--file", f"{context}/{_DOCKERFILE}", "--tag", OPERATOR, str(context)]
        script = [
            ["mount", "-t", "tmpfs", "tmpfs", str(store)],
            [*buildah, "pull", f"oci-archive:{base}"],
            [*buildah, "build", *options, *mounts, *source],
            [*buildah, "push", OPERATOR, f"oci-archive:{folder}/image.tar:{OPERATOR}"],
        ]
        run_alone("building the operator's image", [shlex.join(line) for line in script], _BUILD_SECONDS)


def _copy_context(context: Path) -> None:
    # The clone's environments and build outputs would all be handed to the builder.
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source_folder() / "operator", context / "operator", ignore=ignored)
    for name in (_DOCKERFILE, "pyproject.toml", "constraints.txt"):
        shutil.copy(source_folder() / name, context)


def _write_pip_settings(target: Path) -> Path | None:
    """Write how this machine's pip reaches packages to `target`; return the file of its certificates."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=60
    ).stdout
    settings = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        option = name.rpartition(".")[2]
        if option in _REACHING:
            settings[option] = value.strip("'")
    parser = configparser.RawConfigParser()
    parser["global"] = settings
    with target.open("w") as file:
        parser.write(file)
    return Path(settings["cert"]) if "cert" in settings else None
