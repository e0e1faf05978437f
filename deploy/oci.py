"""Write a Helm chart as an OCI archive, with what `helm push` writes to a registry. The same chart has the same digest.

deploy/oci.py CHART.tgz ARCHIVE.tar, called by deploy/dist.sh. The time in it is SOURCE_DATE_EPOCH. Media types and
annotations: https://helm.sh/docs/topics/registries/; the archive:
https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

import hashlib
import io
import json
import os
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml


def files(chart: bytes, created: int) -> dict[str, bytes]:
    """Return the archive's files, by path, for the chart's archive."""
    with tarfile.open(fileobj=io.BytesIO(chart)) as archive:
        (name,) = (name for name in archive.getnames() if name.count("/") == 1 and name.endswith("/Chart.yaml"))
        about = yaml.safe_load(archive.extractfile(name) or b"")
    annotations = {
        "org.opencontainers.image.created": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
        "org.opencontainers.image.description": about["description"],
        "org.opencontainers.image.title": about["name"],
        "org.opencontainers.image.version": about["version"],
    }
    config = _json(about)
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.cncf.helm.config.v1+json", config),
            "layers": [_descriptor("application/vnd.cncf.helm.chart.content.v1.tar+gzip", chart)],
            "annotations": annotations,
        }
    )
    described = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    named = described | {"annotations": {"org.opencontainers.image.ref.name": about["version"]}}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [named]}
    blobs = {f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}": blob for blob in (config, chart, manifest)}
    return {**blobs, "index.json": _json(index), "oci-layout": _json({"imageLayoutVersion": "1.0.0"})}


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}


if __name__ == "__main__":
    chart, out = map(Path, sys.argv[1:])
    moment = int(os.environ["SOURCE_DATE_EPOCH"])
    with tarfile.open(out, "w", format=tarfile.USTAR_FORMAT) as archive:
        for path, content in files(chart.read_bytes(), moment).items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime = len(content), moment
            archive.addfile(entry, io.BytesIO(content))
