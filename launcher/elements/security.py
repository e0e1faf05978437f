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
    """Return <launchSecurity>. C-bit and reduced address bits are left to libvirt, which asks the host's CPU."""
    technology = domain.launchSecurity
    if technology is None:
        return []
    if technology.sev is not None:
        return [_sev(technology.sev)]
    if technology.snp is not None:
        return [E.launchSecurity(E.policy(f"{_SNP_POLICY:#x}"), type="sev-snp")]
    return [E.launchSecurity(type="tdx")]


def is_stateless(domain: Domain) -> bool:
    """Return whether the firmware is measured whole, and so keeps no variables."""
    technology = domain.launchSecurity
    return technology is not None and technology.sev is None


def _sev(sev: SEV) -> Element:
    policy = _NO_DEBUG | (_ENCRYPTED_STATE if sev.policy.encryptedState else 0)
    element = E.launchSecurity(E.policy(f"{policy:#x}"), type="sev")
    if sev.dhCert is not None:
        element.append(E.dhCert(sev.dhCert))
    if sev.session is not None:
        element.append(E.session(sev.session))
    return element
