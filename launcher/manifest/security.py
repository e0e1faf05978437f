"""spec.domain.launchSecurity: which technology encrypts the guest's memory, and what its owner asks of it."""

from typing import Annotated

from launcher.manifest.scalars import matching
from launcher.model import Refused, model

Base64 = Annotated[
    str,
    matching(
        "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)",
        "is not base64; expected what sevctl or sev-tool has written",
    ),
]


@model
class SEVPolicy:
    """`encryptedState`: SEV-ES, which encrypts the CPU's registers too."""

    encryptedState: bool = False


@model
class SEV:
    """`session` and `dhCert` are the guest owner's, base64."""

    policy: SEVPolicy = SEVPolicy()
    attestation: Annotated[
        None, Refused("the guest would wait, paused, for KubeVirt's API, which is not there; attest from inside it")
    ] = None
    session: Base64 | None = None
    dhCert: Base64 | None = None


@model
class SNP:
    pass


@model
class TDX:
    pass


@model
class LaunchSecurity:
    sev: SEV | None = None
    snp: SNP | None = None
    tdx: TDX | None = None

    def __post_init__(self) -> None:
        said = [name for name in ("sev", "snp", "tdx") if getattr(self, name) is not None]
        if len(said) != 1:
            raise ValueError(f"has {' and '.join(said) or 'none of sev, snp and tdx'}; expected one of the three")
