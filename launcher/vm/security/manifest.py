"""spec.domain.launchSecurity: which technology encrypts the guest's memory, and what its owner asks of it."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import model_validator

from launcher.fields.objects import Object, Refused
from launcher.fields.scalars import Matching, Text
from launcher.vm.security import confidentiality
from launcher.vm.security.confidentiality import Confidentiality
from program.errors import Nonsense

Base64 = Annotated[
    Text,
    Matching(
        "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)",
        "is not base64",
        "expected what sevctl or sev-tool has written",
    ),
]


class SEVPolicy(Object):
    """SEV's policy. `encryptedState`: SEV-ES, which encrypts the CPU's registers too."""

    encryptedState: bool = False


class SEV(Object):
    """AMD SEV. `session` and `dhCert` are the guest owner's, in base64."""

    policy: SEVPolicy = SEVPolicy.model_construct()
    attestation: Annotated[
        None, Refused("the guest would wait, paused, for KubeVirt's API, which is not there", "attest from inside it")
    ] = None
    session: Base64 | None = None
    dhCert: Base64 | None = None


class SNP(Object):
    pass


class TDX(Object):
    pass


class LaunchSecurity(Object):
    sev: SEV | None = None
    snp: SNP | None = None
    tdx: TDX | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        technologies = self.present_fields("sev", "snp", "tdx")
        if len(technologies) != 1:
            raise Nonsense(
                f"has {' and '.join(technologies) or 'none of sev, snp and tdx'}", "expected one of the three"
            )
        return self

    @property
    def field(self) -> str:
        """The name of the technology's field."""
        return self.present_fields("sev", "snp", "tdx")[0]

    @property
    def of_owner(self) -> Mapping[str, str]:
        """The values from the guest's owner to the firmware, by their names, in libvirt's order."""
        texts = {} if self.sev is None else {"dhCert": self.sev.dhCert, "session": self.sev.session}
        return {name: text for name, text in texts.items() if text is not None}

    @property
    def technology(self) -> Confidentiality:
        if self.sev is not None:
            return confidentiality.SEV_ES if self.sev.policy.encryptedState else confidentiality.SEV
        return confidentiality.SEV_SNP if self.snp is not None else confidentiality.TDX
