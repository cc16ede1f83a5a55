"""Everything that a release consists of; each function writes to a folder and leaves nothing else behind."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

from helm_chart import helm
from linked_environment import extras_of, requirements_of, write_environment

CHECKSUMS = "SHA256SUMS"
# The image's name -> its Dockerfile.
_IMAGES = {"training": "Dockerfile", "operator": "operator.Dockerfile"}
_OUR_OWN = "dev"  # the extra for those who work on the project


def build_packages(sources: Path, target: Path, time: int) -> Path:
    """Write wheel and sdist; return the wheel."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(target)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time)}
    subprocess.run(command, cwd=sources, env=environment, stdout=subprocess.DEVNULL, check=True)
    [wheel] = target.glob("*.whl")
    return wheel


def build_chart(sources: Path, target: Path) -> None:
    """Write the chart's package. Helm keeps the files' times and says nothing of its own."""
    helm("package", str(sources / "helm" / "gradsieve"), "--destination", str(target))


def build_contexts(sources: Path, names: Iterable[Path], target: Path, time: int) -> None:
    """Write one archive per image: its Dockerfile and what that copies, for `docker build -`."""
    files = list(names)
    for image, dockerfile in _IMAGES.items():
        wanted = [Path(dockerfile), *_copied((sources / dockerfile).read_text())]
        chosen = [name for name in files if any(name.is_relative_to(each) for each in wanted)]
        archive = target / f"gradsieve-{image}-{_version(sources)}-context.tar.gz"
        # The name that gzip would write down is the scratch folder's.
        with (
            archive.open("wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=time) as packed,
            tarfile.open(fileobj=packed, mode="w") as context,
        ):
            for name in chosen:
                context.add(sources / name, str(name), filter=_anonymous)


def build_inventory(sources: Path, wheel: Path, target: Path, time: int) -> None:
    """Write the SBOM (CycloneDX): what the wheel needs with all extras for users, as pinned here."""
    with tempfile.TemporaryDirectory() as scratch:
        extras = set(extras_of(wheel)) - {_OUR_OWN}
        python = write_environment(Path(scratch), requirements_of(wheel, *extras))
        command = [sys.executable, "-m", "cyclonedx_py", "environment", str(python)]
        options = ["--pyproject", "pyproject.toml", "--mc-type", "library", "--output-reproducible"]
        output = ["--output-file", str(target / f"gradsieve-{_version(sources)}.cdx.json")]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time)}
        subprocess.run([*command, *options, *output], cwd=sources, env=environment, check=True)


def write_checksums(target: Path) -> None:
    """Write the sums of all files, as `sha256sum --check` reads them."""
    files = sorted(path for path in target.iterdir() if path.name != CHECKSUMS)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (target / CHECKSUMS).write_text("".join(sums))


def _version(sources: Path) -> str:
    return str(tomllib.loads((sources / "pyproject.toml").read_text())["project"]["version"])


def _copied(dockerfile: str) -> list[Path]:
    """Return what a Dockerfile copies from its context."""
    lines = (shlex.split(line, comments=True) for line in dockerfile.splitlines() if line.startswith("COPY "))
    own = (words[1:-1] for words in lines if not words[1].startswith("--from="))
    return [Path(word) for word in itertools.chain.from_iterable(own)]


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
