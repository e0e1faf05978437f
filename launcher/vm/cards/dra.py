"""The device that Kubernetes' Dynamic Resource Allocation gave the pod for each request of a ResourceClaim.

A DRA driver puts a file for each request into the container; pci.device_metadata has its format.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from launcher.vm.cards.claims import DeviceID, Entry, Request
from launcher.vm.cards.manifest import ResourceClaim
from pci.device_metadata import IN_CONTAINER, SUFFIX, InvalidMetadata, decode, of_claim, of_template
from program.errors import UserError


def read_allocated(
    entries: Iterable[Entry], claims: tuple[ResourceClaim, ...], directory: Path | None
) -> Mapping[Request, DeviceID]:
    """Read the device of each entry that is a request from the files in `directory`, which is None if it is unknown.

    UserError, naming entry, claim, request and path, for a file that is missing or does not name one device.
    """
    by_name = {claim.name: claim for claim in claims}
    devices: dict[Request, DeviceID] = {}
    for entry in entries:
        request = entry.wants
        if not isinstance(request, Request):
            continue
        if directory is None:
            raise UserError(
                entry,
                f"is {request}, and what DRA gave for that is not known",
                f"expected --dra DIR, a copy of the pod's {IN_CONTAINER}",
            )
        claim = by_name[request.claim]
        path = directory / (
            of_template(claim.name, request.name)
            if claim.resourceClaimName is None
            else of_claim(claim.resourceClaimName, request.name)
        )
        try:
            path = _file(path)
            devices[request] = decode(_text(path), request.name)
        except InvalidMetadata as invalid:
            raise UserError(entry, f"is {request}, but {path}: {invalid.wrong}", invalid.fix) from invalid
        except OSError as error:
            raise UserError(
                entry,
                f"is {request}, but {path}: {error.strerror}",
                f"expected a file *{SUFFIX} there, which DRA drivers write that publish device metadata (KEP-5304)",
            ) from error
    return devices


def _file(directory: Path) -> Path:
    names = sorted(entry.name for entry in directory.iterdir() if entry.name.endswith(SUFFIX))
    if len(names) != 1:
        raise InvalidMetadata(
            f"has {', '.join(names) or 'no file'}", f"expected one file *{SUFFIX}: a request of one driver"
        )
    return directory / names[0]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidMetadata(f"is not JSON: {error}") from error
