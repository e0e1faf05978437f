"""spec.domain.launchSecurity."""

from launcher.model import model


@model
class SEVPolicy:
    encryptedState: bool = False


@model
class SEVAttestation:
    pass


@model
class SEV:
    policy: SEVPolicy | None = None
    attestation: SEVAttestation | None = None
    session: str | None = None
    dhCert: str | None = None


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
