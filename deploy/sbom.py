"""Write the images' SBOMs (CycloneDX) from their locks: Debian's packages with the hashes of their files, and PyPI's.

deploy/sbom.py VERSION DIRECTORY, in the root of the repository, writes gpu-PROGRAM-image-VERSION-ARCHITECTURE.cdx.json
for each lock of an image. Called by deploy/dist.sh.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packageurl import PackageURL


def sbom(lock: Path, version: str) -> dict[str, Any]:
    """The SBOM of the image whose Debian packages are in `lock`, beside its Python packages."""
    image = {"type": "container", "bom-ref": "image", "name": f"gpu-{lock.parent.name}", "version": version}
    pins = re.findall(r"(?m)^(\S+)==(\S+)", (lock.parent / "requirements.txt").read_text())
    components = [_debian(*line.split("  ")) for line in lock.read_text().splitlines()]
    components += [_component(PackageURL("pypi", None, *pin)) for pin in [*pins, ("gpu-launcher", version)]]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": image},
        "components": components,
        "dependencies": [{"ref": "image", "dependsOn": [component["bom-ref"] for component in components]}],
    }


def _debian(digest: str, file: str) -> dict[str, Any]:
    name, version, architecture = unquote(file.removesuffix(".deb")).split("_")
    purl = PackageURL("deb", "debian", name, version, {"arch": architecture, "distro": "trixie"})
    return {**_component(purl), "hashes": [{"alg": "SHA-256", "content": digest}]}


def _component(purl: PackageURL) -> dict[str, Any]:
    text = purl.to_string()
    return {"type": "library", "bom-ref": text, "name": purl.name, "version": purl.version, "purl": text}


if __name__ == "__main__":
    version, directory = sys.argv[1], Path(sys.argv[2])
    for containerfile in sorted(Path("deploy").glob("*/Containerfile")):
        for lock in containerfile.parent.glob("debian-*.lock"):
            architecture = lock.stem.removeprefix("debian-")
            name = f"gpu-{lock.parent.name}-image-{version}-{architecture}.cdx.json"
            (directory / name).write_text(json.dumps(sbom(lock, version), indent=2) + "\n")
