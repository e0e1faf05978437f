import pytest

from launcher.vm.versions import foreign, nearest

DEBIANS = frozenset({"none", "pc-i440fx-7.2", "pc-q35-2.4", "pc-q35-6.2", "pc-q35-7.1", "pc-q35-7.2", "q35"})


@pytest.mark.parametrize(
    ("machine", "there", "taken"),
    [
        ("pc-q35-rhel9.2.0", DEBIANS, "pc-q35-7.2"),
        ("pc-q35-rhel9.1.0", DEBIANS, "pc-q35-6.2"),
        ("pc-q35-rhel8.6.0", DEBIANS, "pc-q35-6.2"),
        ("pc-q35-rhel8.0.0", DEBIANS, "pc-q35-2.4"),
        ("pc-q35-rhel7.6.0", {"pc-q35-6.2"}, "pc-q35-6.2"),
        ("pc-q35-rhel10.2.0", {"pc-q35-9.0", "pc-q35-9.1", "pc-q35-10.0"}, "pc-q35-9.1"),
        ("pc-q35-10.0", DEBIANS, "pc-q35-7.2"),
        ("pc-q35-6.2", DEBIANS, "pc-q35-6.2"),
        ("pc-q35-rhel9.4.0", {"pc-q35-rhel9.4.0"}, "pc-q35-rhel9.4.0"),
        ("pc-q35-rhel9.4.0", None, "pc-q35-8.2"),
        ("pc-q35-rhel9.4.0", {"none"}, "q35"),
        ("pc-q35-noble", DEBIANS, "q35"),
        ("virt-rhel9.4.0", {"virt-8.1", "virt-9.0", "pc-q35-8.2"}, "virt-8.1"),
        ("virt-rhel6.0.0", None, "virt"),
        ("q35", DEBIANS, "q35"),
    ],
)
def test_the_nearest_machine_is_the_newest_that_is_not_newer(machine: str, there: set[str] | None, taken: str) -> None:
    assert nearest(machine, there) == taken


def test_only_a_machine_of_qemus_own_project_is_in_gpu_launchers_image() -> None:
    assert [foreign(machine) for machine in (None, "q35", "virt", "pc-q35-4.0.1", "virt-8.2")] == [None] * 5
    assert str(foreign("virt-rhel9.4.0")) == (
        "spec.domain.machine.type: virt-rhel9.4.0 is a machine of another build of QEMU than that of gpu-launcher's "
        "image; write the annotation gpu-launcher.dev/machine: nearest, which takes the nearest that QEMU has, or virt "
        "for its newest"
    )
