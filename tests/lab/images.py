"""Container images without a registry: OCI image layouts as one archive, for `ctr images import`.

https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_OCI = "application/vnd.oci.image"
_CAPABILITIES = "security.capability"
_PLATFORM = {"architecture": "amd64", "os": "linux"}


def write_layer(layer: Path, root: Path) -> None:
    """A directory's content as a layer: the same tree gives the same bytes. Its files keep owner, capabilities
    and time: by its source's, Python knows whether what Debian has compiled of it is of that source."""
    with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            entry = archive.gettarinfo(path, arcname=str(path.relative_to(root)))
            entry.mtime = int(entry.mtime)
            entry.uname = entry.gname = ""
            if _CAPABILITIES in os.listxattr(path, follow_symlinks=False):
                capabilities = os.getxattr(path, _CAPABILITIES).decode("utf-8", "surrogateescape")
                entry.pax_headers = {f"SCHILY.xattr.{_CAPABILITIES}": capabilities}
            with path.open("rb") if entry.isreg() else io.BytesIO() as content:
                archive.addfile(entry, content)


def write_image(
    archive: Path, names: Mapping[str, Sequence[str]], *, layers: Sequence[Path], known: Sequence[Path] = ()
) -> None:
    """Images, by name with their entrypoints, of the same layers.

    `known` are the lower ones, which the importing store has already; `layers` come with the archive.
    """
    # Once a layer: the lower ones have hundreds of megabytes.
    above = [_layer(layer) for layer in layers]
    described = [*(_layer(layer) for layer in known), *above]
    index = []
    with tarfile.open(archive, "w") as out:
        for layer, descriptor in zip(layers, above, strict=True):
            out.add(layer, _place(descriptor["digest"]))
        for name, argv in names.items():
            config = _descriptor(out, "config", _config(described, argv))
            manifest = _descriptor(out, "manifest", _manifest(described, config))
            index.append({**manifest, "platform": _PLATFORM, "annotations": {"io.containerd.image.name": name}})
        _add(out, "index.json", {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": index})
        _add(out, "oci-layout", {"imageLayoutVersion": "1.0.0"})


def _layer(layer: Path) -> dict[str, Any]:
    with layer.open("rb") as content:
        digest = f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}"
    return {"mediaType": f"{_OCI}.layer.v1.tar", "digest": digest, "size": layer.stat().st_size}


def _config(layers: Sequence[dict[str, Any]], argv: Sequence[str]) -> dict[str, Any]:
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {
        **_PLATFORM,
        "config": {"Entrypoint": list(argv), "Env": [path]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
    }


def _manifest(layers: Sequence[dict[str, Any]], config: dict[str, Any]) -> dict[str, Any]:
    return {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": config,
        "layers": list(layers),
    }


def _descriptor(archive: tarfile.TarFile, kind: str, content: dict[str, Any]) -> dict[str, Any]:
    """Add a blob to the archive; what others know it by."""
    data = json.dumps(content).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    _add(archive, _place(digest), content)
    return {"mediaType": f"{_OCI}.{kind}.v1+json", "digest": digest, "size": len(data)}


def _place(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _add(archive: tarfile.TarFile, name: str, content: dict[str, Any]) -> None:
    data = json.dumps(content).encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
