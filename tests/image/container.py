"""A container of an image that `make image` has just written, in a store of the test's own."""

import json
import os
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Literal

from tests.processes import FIXTURES, ROOT

Program = Literal["plugin", "launcher"]

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
ARCHITECTURE = subprocess.run(
    ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
).stdout.strip()


def archive(program: Program) -> Path:
    return ROOT / "dist" / f"gpu-{program}-{VERSION}.tar"


def sizes(program: Program) -> dict[str, int]:
    """The bytes of the compressed layers for each architecture of the archive, which is an index of images, one for
    each that `deploy/build.sh` was called with."""
    with tarfile.open(archive(program)) as file:
        return {
            image["platform"]["architecture"]: sum(layer["size"] for layer in _document(file, image)["layers"])
            for image in _images(file)
        }


def times(program: Program) -> set[float]:
    """Every time in the archive, in seconds of Unix' epoch: its own files', its images', and those of their files."""
    with tarfile.open(archive(program)) as file:
        found = {member.mtime for member in file}
        for image in _images(file):
            manifest = _document(file, image)
            config = _document(file, manifest["config"])
            made = [config["created"], *(step["created"] for step in config["history"])]
            found |= {datetime.fromisoformat(text).timestamp() for text in made}
            for layer in manifest["layers"]:
                with tarfile.open(fileobj=_blob(file, layer)) as content:
                    found |= {member.mtime for member in content}
        return found


def _images(file: tarfile.TarFile) -> list[dict[str, Any]]:
    """The descriptors of its images' manifests."""
    index = file.extractfile("index.json")
    assert index
    (images,) = json.load(index)["manifests"]
    found: list[dict[str, Any]] = _document(file, images)["manifests"]
    return found


def _document(file: tarfile.TarFile, descriptor: dict[str, Any]) -> dict[str, Any]:
    return dict(json.load(_blob(file, descriptor)))


def _blob(file: tarfile.TarFile, descriptor: dict[str, Any]) -> IO[bytes]:
    content = file.extractfile(f"blobs/{descriptor['digest'].replace(':', '/')}")
    assert content
    return content


@dataclass(frozen=True)
class Container:
    """`program`'s image in the store, and a directory for what a command prints in it."""

    program: Program
    store: Path
    out: Path

    def buildah(self, *arguments: str | Path) -> str:
        """What it prints; it has to succeed. Debian 12's is called again where it has killed its own child, as
        deploy/build.sh does."""
        for _ in range(5):
            done = subprocess.run(
                ["buildah", "--root", self.store, "--runroot", self.store / "run", *arguments],
                env={**os.environ, "BUILDAH_ISOLATION": "chroot"},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if "signal: killed" not in done.stderr:
                break
        assert done.returncode == 0, f"buildah {arguments} exited with {done.returncode}: {done.stderr}"
        return done.stdout

    def run(self, *argv: str | Path) -> str:
        """What a command in it prints; it sees the fixtures below /fixtures."""
        # Not through buildah: what a command prints last is now and then lost there.
        printing = ("sh", "-c", 'exec "$@" > /out/printed', "sh", *argv)
        volumes = ("--volume", f"{FIXTURES}:/fixtures:ro", "--volume", f"{self.out}:/out")
        self.buildah("run", *volumes, "image", "--", *printing)
        return (self.out / "printed").read_text()

    def root(self) -> Path:
        """Its file system, seen from outside."""
        return Path(self.buildah("mount", "image").strip())


@contextmanager
def container_of(program: Program, directory: Path, architecture: str = ARCHITECTURE) -> Iterator[Container]:
    """A container of the image, until the end of the block; what it needs is in `directory`."""
    container = Container(program, directory / "store", directory / "out")
    container.out.mkdir(parents=True)
    container.buildah("from", "--quiet", "--name", "image", "--arch", architecture, f"oci-archive:{archive(program)}")
    try:
        yield container
    finally:
        container.buildah("umount", "image")
        container.buildah("rm", "image")
        # Left mounted, it keeps pytest from removing the directory some runs later.
        if (overlay := container.store / "overlay").is_mount():
            subprocess.run(["umount", overlay], check=True)
