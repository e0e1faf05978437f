"""spec.domain.devices.gpus and hostDevices, and spec.resourceClaims."""

from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import model_validator

from launcher.fields.objects import Below, Ignored, Object, one_of, placed, refuse_twice
from launcher.fields.scalars import AliasName, DNSName, Matching, Text
from launcher.vm.cards.claims import Request
from program.errors import Nonsense

Resource = Annotated[
    Text,
    Matching(
        "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?(/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?",
        "is no resource name",
        "expected one like nvidia.com/GH100_H100_PCIE",
    ),
]
# Part of a path below DRA's directory, so nothing that leads out of it.
RequestLabel = Annotated[
    Text,
    Matching("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "is no DNS label", "expected lower-case letters, digits and -"),
]


class RamFB(Object):
    enabled: bool = True


class Display(Object):
    """A display. Left out, `enabled` is true for a mediated device and false for a PCI device (KubeVirt)."""

    enabled: bool | None = None
    ramFB: RamFB = RamFB.model_construct()


class VirtualGPUOptions(Object):
    display: Display | None = None


class HostDevice(Object):
    """An entry of `hostDevices`, or of `gpus`: one device of the resource `deviceName`, called `name` in the domain.

    Or one device of a Kubernetes ResourceClaim: `claimName`, as spec.resourceClaims calls it, and `requestName`.
    """

    name: AliasName
    deviceName: Resource | None = None
    claimName: RequestLabel | None = None
    requestName: RequestLabel | None = None
    tag: Annotated[Any, Ignored("tags are for the config drive's device metadata, which is not written")] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        either = "either deviceName, a resource of a device plugin's, or claimName and requestName, a request of DRA's"
        present = self.present_fields("deviceName", "claimName", "requestName")
        if not present:
            raise Nonsense("names no device", f"expected {either}")
        if self.deviceName is not None and len(present) > 1:
            raise Nonsense(f"has both deviceName and {present[1]}", f"expected {either}")
        if present == ["requestName"]:
            raise Nonsense("has requestName without claimName", "expected the claim, as spec.resourceClaims calls it")
        if present == ["claimName"]:
            raise Nonsense("has claimName without requestName", f"expected the request of {self.claimName} that it is")
        return self

    @property
    def wants(self) -> str | Request:
        """The resource, or the request of a claim, that this is a device of."""
        if self.claimName is not None and self.requestName is not None:
            return Request(self.claimName, self.requestName)
        assert self.deviceName is not None, "an entry has one or the other"
        return self.deviceName


class GPU(HostDevice):
    virtualGPUOptions: VirtualGPUOptions | None = None


class ResourceClaim(Object):
    """A ResourceClaim of the pod: one that exists, or one that is made from a template for the pod."""

    name: RequestLabel
    resourceClaimName: DNSName | None = None
    resourceClaimTemplateName: DNSName | None = None

    _check = one_of(
        *("resourceClaimName", "resourceClaimTemplateName"),
        none="has neither resourceClaimName nor resourceClaimTemplateName",
    )


def refuse_repeated(entries: Iterable[tuple[str, HostDevice]]) -> None:
    """Raise Nonsense for two entries of one name, or of one request: a request of DRA's is one device. Each entry is
    behind its path."""
    refuse_twice([(path, entry.name) for path, entry in entries], "rename one of them")
    requests: dict[Request, str] = {}
    for path, entry in entries:
        wants = entry.wants
        if isinstance(wants, Request) and (first := requests.setdefault(wants, entry.name)) != entry.name:
            wrong = f"{first!r} and {entry.name!r} are both {wants}, which is one device"
            raise Below(path, wrong, "expected a request for each")


def refuse_unknown_claims(entries: Iterable[tuple[str, HostDevice]], claims: tuple[ResourceClaim, ...]) -> None:
    """Raise Nonsense for two claims of one name, and for an entry of a claim that the pod doesn't have. Each entry is
    behind its path in domain.devices."""
    known = [claim.name for claim in claims]
    refuse_twice(placed("resourceClaims", known), "rename one of them")
    for path, entry in entries:
        if entry.claimName is not None and entry.claimName not in known:
            raise Below(
                f"domain.devices.{path}.claimName",
                f"{entry.claimName!r} is not in resourceClaims",
                f"expected {' or '.join(map(repr, sorted(known))) or 'it there'}",
            )
