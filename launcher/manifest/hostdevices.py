"""spec.domain.devices.gpus and hostDevices."""

from typing import Annotated

from launcher.manifest.scalars import AliasName, matching
from launcher.model import Ignored, model

Resource = Annotated[
    str,
    matching(
        "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?(/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?",
        "is no resource name; expected one like nvidia.com/GH100_H100_PCIE",
    ),
]


@model
class RamFB:
    enabled: bool = True


@model
class Display:
    enabled: bool = True
    ramFB: RamFB | None = None


@model
class VirtualGPUOptions:
    display: Display | None = None


@model
class HostDevice:
    """An entry of `hostDevices`, or of `gpus`: one device of the resource `deviceName`, called `name` in the domain.

    Or one device of a Kubernetes ResourceClaim: `claimName`, as spec.resourceClaims calls it, and `requestName`.
    """

    name: AliasName
    deviceName: Resource | None = None
    claimName: str | None = None
    requestName: str | None = None
    tag: Annotated[str | None, Ignored("tags are for the config drive's device metadata, which is not written")] = None


@model
class GPU(HostDevice):
    virtualGPUOptions: VirtualGPUOptions | None = None
