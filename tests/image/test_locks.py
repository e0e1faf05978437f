"""What the images are built from: a file of Debian's that is not the lock's, and the digest of the base."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

from tests.image.container import ARCHITECTURE, container_of
from tests.processes import ROOT


def test_a_file_of_debians_that_is_not_the_locks_is_not_installed(tmp_path: Path) -> None:
    lock = (ROOT / f"deploy/dependencies/debian-{ARCHITECTURE}.lock").read_text()
    (line,) = re.findall(r"(?m)^(\w{64}  python3-pip_.*)$", lock)
    with container_of("plugin", tmp_path) as container:
        inside = container.root() / "tmp"
        shutil.copy(ROOT / "deploy/debian.sh", inside)
        (inside / f"debian-{ARCHITECTURE}.lock").write_text(lock.replace(line, "0" * 64 + line[64:]))
        build = "BASE=localhost/plugin DEBIAN_FRONTEND=noninteractive /tmp/debian.sh 2>&1; command -v pip3"
        said = container.run("sh", "-c", f"{build} || true").splitlines()
    renew = "renew the locks with make lock-debian"
    assert said[-2:] == [line, f"/tmp/debian-{ARCHITECTURE}.lock: these files of Debian are not the lock's; {renew}"]


def test_the_digest_of_the_base_is_renewed_wherever_it_stands(tmp_path: Path) -> None:
    """From an OCI layout: the digest is the index's, which is every architecture's."""
    paths = ["deploy/plugin/Containerfile", "deploy/launcher/Containerfile", ".github/workflows/release.yaml"]
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True)
        shutil.copy(ROOT / path, tmp_path / path)
    reference, digest = _layout(tmp_path / "layout")
    subprocess.run([ROOT / "deploy/base.sh", reference], cwd=tmp_path, check=True, capture_output=True)
    for path in paths:
        before, after = ((root / path).read_text() for root in (ROOT, tmp_path))
        assert after == re.sub(r"debian@sha256:\w{64}", f"debian@sha256:{digest}", before) != before


def _layout(directory: Path) -> tuple[str, str]:
    """An OCI layout with an index of images, which ends in a newline; and the index's digest."""
    index = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []})
    blob = f"{index}\n".encode()
    digest = hashlib.sha256(blob).hexdigest()
    (directory / "blobs/sha256").mkdir(parents=True)
    (directory / "blobs/sha256" / digest).write_bytes(blob)
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    entry = {
        "mediaType": "application/vnd.oci.image.index.v1+json", "digest": f"sha256:{digest}", "size": len(blob),
        "annotations": {"org.opencontainers.image.ref.name": "trixie-slim"},
    }  # fmt: skip
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return f"oci:{directory}:trixie-slim", digest
