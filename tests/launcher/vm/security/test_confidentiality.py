"""What a technology means for the rest of the guest, by the manifest that asks for it."""

import pytest

from launcher.vm.security import manifest as security
from launcher.vm.security.confidentiality import SEV, SEV_ES, SEV_SNP, TDX, Confidentiality
from launcher.vm.security.manifest import LaunchSecurity

PLAIN, WITH_STATE = (security.SEV(policy=security.SEVPolicy(encryptedState=state)) for state in (False, True))


@pytest.mark.parametrize(
    ("asked", "technology", "shares_buffers", "pins_memory", "is_measured", "needs_dev_sev"),
    [
        (LaunchSecurity(sev=PLAIN), SEV, True, True, False, True),
        (
            LaunchSecurity(sev=WITH_STATE),
            SEV_ES,
            True,
            True,
            False,
            True,
        ),
        (LaunchSecurity(snp=security.SNP()), SEV_SNP, True, False, True, True),
        (LaunchSecurity(tdx=security.TDX()), TDX, False, False, True, False),
    ],
)
def test_each_technology_says_what_others_depend_on(
    asked: LaunchSecurity,
    technology: Confidentiality,
    shares_buffers: bool,
    pins_memory: bool,
    is_measured: bool,
    needs_dev_sev: bool,
) -> None:
    found = asked.technology
    assert found == technology
    assert (found.shares_buffers, found.pins_memory) == (shares_buffers, pins_memory)
    assert (found.is_measured, found.needs_dev_sev) == (is_measured, needs_dev_sev)


def test_only_tdx_has_secure_boot_and_a_service_that_signs_quotes() -> None:
    every = (SEV, SEV_ES, SEV_SNP, TDX)
    assert [each for each in every if each.has_secure_boot] == [each for each in every if each.quote_socket] == [TDX]


def test_only_tdx_has_neither_smm_nor_performance_counters() -> None:
    every = (SEV, SEV_ES, SEV_SNP, TDX)
    assert [each for each in every if not each.has_smm] == [each for each in every if not each.has_pmu] == [TDX]
