"""<launchSecurity>: how the guest's memory is encrypted."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.vm.security.confidentiality import SEV, SEV_ES, SEV_SNP, Confidentiality
from launcher.vm.security.manifest import LaunchSecurity

#: Bits of the guest's policy (AMD's SEV API, 55766, table 2): no debugging, as for KubeVirt; the registers too.
_NO_DEBUG, _ENCRYPTED_STATE = 1 << 0, 1 << 2
#: SEV-SNP's (AMD 56860, table 9): threads of one core may run two guests; a bit that has to be set.
_SNP_POLICY = 1 << 16 | 1 << 17
_POLICIES: dict[Confidentiality, int] = {SEV: _NO_DEBUG, SEV_ES: _NO_DEBUG | _ENCRYPTED_STATE, SEV_SNP: _SNP_POLICY}


def launch_security(security: LaunchSecurity | None) -> list[Element]:
    """Return <launchSecurity>. C-bit and reduced address bits are left to libvirt, which asks the host's CPU."""
    if security is None:
        return []
    technology = security.technology
    element = E.launchSecurity(type=technology.libvirt_type)
    if technology in _POLICIES:
        element.append(E.policy(f"{_POLICIES[technology]:#x}"))
    element.extend(E(name, text) for name, text in security.of_owner.items())
    if technology.quote_socket is not None:
        # QEMU connects when the guest asks for a quote, so the socket may be missing.
        element.append(E.quoteGenerationService(path=technology.quote_socket))
    return [element]
