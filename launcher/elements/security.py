"""<launchSecurity>: memory that the host cannot read."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.security import SEV
from launcher.manifest.spec import Domain

#: Bits of the guest's policy (AMD's SEV API, 55766, table 2): no debugging, as for KubeVirt; the registers too.
_NO_DEBUG, _ENCRYPTED_STATE = 1 << 0, 1 << 2
#: SEV-SNP's (AMD 56860, table 9): threads of one core may run two guests; a bit that has to be set.
_SNP_POLICY = 1 << 16 | 1 << 17


def launch_security(domain: Domain) -> list[Element]:
    """C-bit and reduced address bits are left to libvirt, which asks the host's CPU."""
    said = domain.launchSecurity
    if said is None:
        return []
    if said.sev is not None:
        return [_sev(said.sev)]
    if said.snp is not None:
        return [E.launchSecurity(E.policy(f"{_SNP_POLICY:#x}"), type="sev-snp")]
    return [E.launchSecurity(type="tdx")]


def is_stateless(domain: Domain) -> bool:
    """Whether the firmware is measured whole, and so keeps no variables."""
    said = domain.launchSecurity
    return said is not None and said.sev is None


def _sev(said: SEV) -> Element:
    policy = _NO_DEBUG | (_ENCRYPTED_STATE if said.policy.encryptedState else 0)
    element = E.launchSecurity(E.policy(f"{policy:#x}"), type="sev")
    if said.dhCert is not None:
        element.append(E.dhCert(said.dhCert))
    if said.session is not None:
        element.append(E.session(said.session))
    return element
