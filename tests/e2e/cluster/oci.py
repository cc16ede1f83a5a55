"""Pack a root file system as an OCI image of one layer."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any

_KIND = "application/vnd.oci.image."
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_archive(archive: Path, name: str, root: Path, configuration: dict[str, Any]) -> None:
    """Write the image `name` with the files of `root` to `archive`.

    1. The layer is the tar of `root`, stored uncompressed: every node unpacks it, and disks are faster than
       inflating.
    2. The image names the layer, the manifest names both, the index names the manifest, each by digest.

    Args:
        archive: where containerd's `ctr images import` will read it; `root` may not contain it.
        name: with registry and tag, as pods will say it.
        root: the root file system.
        configuration: the image's `config`: `Env`, `Entrypoint`, `User` and so on.
    """
    layer = archive.with_suffix(".layer")
    try:
        with tarfile.open(layer, "w") as tar:
            tar.add(root, arcname=".")
        layer_digest = _file_digest(layer)
        image = _encode(
            {
                "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
                "os": "linux",
                "config": configuration,
                "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
            }
        )
        manifest = _encode(
            {
                "schemaVersion": 2,
                "mediaType": f"{_KIND}manifest.v1+json",
                "config": _descriptor("config.v1+json", _digest(image), len(image)),
                "layers": [_descriptor("layer.v1.tar", layer_digest, layer.stat().st_size)],
            }
        )
        names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
        listed = _descriptor("manifest.v1+json", _digest(manifest), len(manifest)) | {"annotations": names}
        with tarfile.open(archive, "w") as tar:
            _add(tar, "oci-layout", _encode({"imageLayoutVersion": "1.0.0"}))
            _add(tar, "index.json", _encode({"schemaVersion": 2, "manifests": [listed]}))
            for blob in (image, manifest):
                _add(tar, _path(_digest(blob)), blob)
            tar.add(layer, arcname=_path(layer_digest))
    finally:
        layer.unlink(missing_ok=True)


def _encode(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": f"{_KIND}{kind}", "digest": digest, "size": size}


def _add(tar: tarfile.TarFile, path: str, blob: bytes) -> None:
    info = tarfile.TarInfo(path)
    info.size = len(blob)
    tar.addfile(info, io.BytesIO(blob))
