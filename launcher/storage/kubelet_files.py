"""The files of config maps, secrets and the like, as the kubelet mounts them."""

from collections.abc import Mapping
from pathlib import Path

from launcher.storage.regular_files import regular_file
from program.errors import Refusal

#: The kubelet's link to the files as they are, which it turns to others all at once (pkg/volume/util/atomic_writer.go).
_DATA = "..data"


def mounted_files(volume: str, directory: Path) -> Mapping[str, bytes]:
    """Content by path below the directory; all of one version, though the cluster may change them meanwhile.

    Refusal, which names the volume, where the directory is not there or not readable, or a file leads out of it.
    """
    whose = f"the volume {volume!r}"
    try:
        data = directory / _DATA
        there = data.resolve(strict=True) if data.is_symlink() else directory.resolve(strict=True)
        files = sorted(path for path in there.rglob("*") if path.is_file() or path.is_symlink())
        return {str(path.relative_to(there)): regular_file(whose, path, directory).read_bytes() for path in files}
    except OSError as error:
        fix = f"expected the pod to mount it at {directory}"
        raise Refusal(whose, f"cannot be read: {error.strerror}", fix) from error
