"""How many I/O threads there are, by policy, disks and CPUs; golden files show which disk has which."""

from pathlib import Path

import pytest

from launcher.vm.disks.guest import iothreads_of
from tests.launcher.vms import read_manifest, vmi_text


@pytest.mark.parametrize(
    ("policy", "cpus", "disks", "threads"),
    [
        # Disks: v is virtio, V with a thread of its own, s another one, which counts and uses none.
        ("", 1, "vv", []),
        ("", 1, "V", [1]),
        ("", 1, "Vvv", [2, 1, 1]),
        ("shared", 8, "", []),
        ("shared", 8, "vsv", [1, 1]),
        ("shared", 8, "vVV", [1, 2, 3]),
        ("auto", 1, "vvv", [1, 2, 1]),
        ("auto", 2, "vvvvvv", [1, 2, 3, 4, 1, 2]),
        ("auto", 2, "vvV", [1, 2, 3]),
        ("auto", 1, "VVV", [2, 3, 4]),
        ("auto", 4, "sv", [1]),
    ],
)
def test_disks_take_turns_on_as_many_threads_as_the_policy_has(
    tmp_path: Path, policy: str, cpus: int, disks: str, threads: list[int]
) -> None:
    said = {
        "v": "{name: disk%d, disk: {bus: virtio}}",
        "V": "{name: disk%d, disk: {bus: virtio}, dedicatedIOThread: true}",
        "s": "{name: disk%d, disk: {bus: sata}}",
    }
    entries = ", ".join(said[disk] % number for number, disk in enumerate(disks))
    volumes = ", ".join(f"{{name: disk{number}, emptyDisk: {{capacity: 1Gi}}}}" for number in range(len(disks)))
    domain = f"    resources: {{requests: {{cpu: {cpus}}}}}\n" + (f"    ioThreadsPolicy: {policy}\n" if policy else "")
    path = tmp_path / "vm.yaml"
    path.write_text(vmi_text(domain=domain).replace("gpus: []", f"disks: [{entries}]") + f"  volumes: [{volumes}]\n")
    assigned = iothreads_of(read_manifest(path).spec)
    assert list(assigned.of_disks.values()) == [(thread,) for thread in threads]
    assert assigned.count >= max(threads, default=0)
