"""A container of an image that `make image` has just written, in a store of the test's own."""

import json
import os
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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

        def read(name: str) -> dict[str, Any]:
            member = file.extractfile(name)
            assert member
            return dict(json.load(member))

        def blob(descriptor: dict[str, str]) -> dict[str, Any]:
            return read(f"blobs/{descriptor['digest'].replace(':', '/')}")

        (index,) = read("index.json")["manifests"]
        return {
            image["platform"]["architecture"]: sum(layer["size"] for layer in blob(image)["layers"])
            for image in blob(index)["manifests"]
        }


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
