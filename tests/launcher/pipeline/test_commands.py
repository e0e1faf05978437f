"""render, explain, check and run: one VM on one machine is the same to all of them."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from launcher.cli import command_line
from program.errors import ProgramError
from tests.conftest import Command, Machine
from tests.launcher.cases import VMS, case
from tests.launcher.vm.trees import write
from tests.launcher.vms import RTX_2060, RTX_2060_VARIABLE, RTX_3090, RTX_3090_VARIABLE, vmi_text
from tests.processes import FIXTURES, ROOT

CARDS = "PCI_RESOURCE_EXAMPLE_COM_CARD"
H100 = "PCI_RESOURCE_NVIDIA_COM_GH100_H100_PCIE"
#: `run` as far as its plan.
_PLAN = """
import json, sys
from pathlib import Path
from launcher.commands.local import Local
from launcher.commands.run import run
from program.entry import ends_with
from program.log import LogFlags
vm, sysfs = map(Path, sys.argv[1:])
def plan():
    plan = run(Local(vm=vm, sysfs=sysfs, connect="test:///default", emulation=True), LogFlags())
    print(json.dumps({"xml": plan.xml, "numbers": dict(plan.numbers)}))
ends_with("gpu-launcher", plan)
"""


def planned(vm: Path, sysfs: Path, environ: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    command: list[str | Path] = [sys.executable, "-c", _PLAN, vm, sysfs]
    return subprocess.run(command, cwd=ROOT, env=dict(environ), capture_output=True, text=True, check=False)


@dataclass(frozen=True)
class VM:
    """A manifest of fixtures/vms on a machine of fixtures/sysfs, and what the warnings are about."""

    name: str
    machine: str
    environ: Mapping[str, str]
    warnings: tuple[str, ...]
    cpuset: str | None = None


EVERYWHERE = [
    VM(
        "topology-numa-unknown",
        "lab-modern",
        {CARDS: "0000:01:00.0,0000:41:00.0", RTX_2060_VARIABLE: "0000:86:00.0"},
        (f"{RTX_2060_VARIABLE}: has 0000:86:00.0 left over", "gpu 'gpu1': 0000:01:00.0 is on a NUMA node that"),
    ),
    VM(
        "topology-numa-dedicated",
        "two-rtx-3090",
        {RTX_3090_VARIABLE: "0000:01:00.0,0000:e1:00.0"},
        ("gpu 'gpu2': 0000:e1:00.0 is on NUMA node 1, and the guest's CPUs are on 0",),
        cpuset="0-3,16-19",
    ),
    VM(
        "large-bars-efi",
        "two-h100",
        {H100: "0000:41:00.0,0000:c1:00.0"},
        ("the cards' BARs: need 513 GiB of the guest's addresses, more than QEMU's own CPU",),
    ),
]


@pytest.mark.parametrize("vm", EVERYWHERE, ids=lambda vm: vm.name)
def test_all_commands_find_the_same_domain_the_same_seats_and_the_same_warnings(
    vm: VM, gpu_launcher: Command, copied_machine: Machine
) -> None:
    path, sysfs, flags = VMS / f"{vm.name}.yaml", copied_machine(vm.machine), list[str]()
    if vm.cpuset is not None:  # which the one is told, and the other reads
        write(sysfs, {"fs/cgroup/cpuset.cpus.effective": f"{vm.cpuset}\n"})
        flags += ["--cpuset", vm.cpuset]
    offline = (path, "--sysfs", sysfs, "--emulation", *flags)
    rendered = gpu_launcher("render", *offline, env=vm.environ)
    explained = gpu_launcher("explain", *offline, "--json", env=vm.environ)
    here = ("--vm", path, "--sysfs", sysfs, "--emulation", "--connect", "test:///default")
    checked = gpu_launcher("check", *here, "--json", env=vm.environ)
    run = planned(path, sysfs, vm.environ)

    plan = json.loads(run.stdout)
    assert plan["xml"] == rendered.stdout
    told = [passed for entry in json.loads(explained.stdout)["entries"] for passed in entry["passed"]]
    assert seats(plan) == {passed["host"]: passed["guest"] for passed in told}
    found = json.loads(checked.stdout)["findings"]
    warnings = [
        f"gpu-launcher: {each['severity']}: {each['subject']}: {each['wrong']}; {each['fix']}" for each in found
    ]
    assert rendered.stderr.splitlines() == explained.stderr.splitlines() == run.stderr.splitlines() == warnings
    assert len(warnings) == len(vm.warnings)
    for line, about in zip(warnings, vm.warnings, strict=True):
        assert line.startswith(f"gpu-launcher: warning: {about}")


def seats(plan: Mapping[str, Any]) -> dict[str, str]:
    """Where the guest has each function of the host's, by the domain and the numbers of its buses."""
    found = {}
    for hostdev in etree.fromstring(plan["xml"]).iterfind("devices/hostdev"):
        source, guest = hostdev.find("source/address"), hostdev.find("address")
        assert source is not None
        assert guest is not None
        domain, bus, slot, function = (int(source.get(part, ""), 16) for part in ("domain", "bus", "slot", "function"))
        at = plan["numbers"][str(int(guest.get("bus", ""), 16))]
        slot_there, function_there = (int(guest.get(part, ""), 16) for part in ("slot", "function"))
        host = f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"
        found[host] = f"0000:{at:02x}:{slot_there:02x}.{function_there}"
    return found


def test_all_commands_say_every_error_at_once(gpu_launcher: Command, machine: Machine, tmp_path: Path) -> None:
    """Two resources without devices, and more CPUs than the pod has; what rests on the cards is not judged."""
    (tmp_path / "vm.yaml").write_text(
        vmi_text(gpus=[("a", RTX_2060), ("b", RTX_3090), ("c", RTX_3090)], domain="    cpu: {cores: 2, model: EPYC}\n")
        .replace("{name: vm}", "{name: vm, annotations: {gpu-launcher.dev/topology: numa}}")
        .replace("cores: 2", "cores: 2, dedicatedCpuPlacement: true")
    )
    sysfs, environ = machine("two-rtx-3090"), {RTX_3090_VARIABLE: "0000:01:00.0"}
    offline = (tmp_path / "vm.yaml", "--sysfs", sysfs, "--emulation", "--cpuset", "0")
    rendered = gpu_launcher("render", *offline, env=environ)
    *errors, last = rendered.stderr.splitlines()
    assert [line.split(": asks for ")[0].split(": the guest")[0] for line in errors] == [
        "gpu-launcher: error: gpu 'a'",
        "gpu-launcher: error: gpu 'c'",
        f"gpu-launcher: error: {tmp_path}/vm.yaml:13: spec.domain.cpu.dedicatedCpuPlacement",
    ]
    assert last == "gpu-launcher: the VM: 3 things keep it from starting; the lines above say each, with its fix"
    assert (rendered.stdout, rendered.returncode) == ("", 2)
    explained = gpu_launcher("explain", *offline, env=environ)
    assert (explained.stderr, explained.stdout, explained.returncode) == (rendered.stderr, "", 2)


@dataclass(frozen=True)
class Answer:
    stdout: str
    stderr: str
    code: int


def answer(capture: "pytest.CaptureFixture[str]", command: str, *arguments: str | Path) -> Answer:
    """What a command says in this process, which has imported everything already."""
    call, code = [command, *map(str, arguments)], 0
    try:
        command_line(call)(call, standalone_mode=False)
    except ProgramError as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    stdout, stderr = capture.readouterr()
    return Answer(stdout, stderr, code)


OFFLINE = ("--env", "X=1")
#: By flag of render: a manifest and flags, and those that change what render makes of them.
FLAGS: Mapping[str, tuple[str, tuple[str | Path, ...], tuple[str | Path, ...]]] = {
    "--name": ("no-devices", OFFLINE, ("--name", "nobody")),
    "--namespace": ("list-of-dumps", OFFLINE, ("--namespace", "nowhere")),
    "--instancetype": ("no-devices", OFFLINE, ("--instancetype", FIXTURES / "instancetypes" / "inferred.yaml")),
    "--preference": ("no-devices", OFFLINE, ("--preference", FIXTURES / "instancetypes" / "preferences.yaml")),
    "--env": ("one-gpu", OFFLINE, (f"--env={RTX_2060_VARIABLE}=0000:01:00.0",)),
    "--env-file": ("one-gpu", OFFLINE, ("--env-file", "pod.env")),
    "--gpu": ("one-gpu", OFFLINE, ("--gpu", "01:00.0")),
    "--sysfs": (
        "one-gpu",
        (f"--env={RTX_2060_VARIABLE}=0000:01:00.0",),
        ("--sysfs", FIXTURES / "sysfs" / "rtx-2060"),
    ),
    "--dra": ("dra-without-vgpu", OFFLINE, ("--dra", FIXTURES / "dra" / "pod")),
    "--emulation": ("large-bars-efi", tuple(case("large-bars-efi").arguments()[1:]), ("--emulation",)),
    "--block-volume": ("container-disks", OFFLINE, ("--block-volume", "nothing")),
    "--no-direct-io": ("container-disks", OFFLINE, ("--no-direct-io", "nothing")),
    "--raw-image": ("container-disks", OFFLINE, ("--raw-image", "nothing")),
    "--block-size": (
        "discard-granularity",
        (*OFFLINE, "--block-size", "file=4096"),
        ("--block-size", "device=512/4096/0"),
    ),
    "--cpuset": (
        "topology-numa-dedicated",
        tuple(case("topology-numa-dedicated").arguments()[1:]),
        ("--cpuset", "0-3,16-19"),
    ),
    "--network-status": (
        "networks",
        (*OFFLINE, "--network-status", FIXTURES / "networks" / "pod.json"),
        ("--network-status", FIXTURES / "networks" / "other-pod.json"),
    ),
    "--libvirt": ("acpi-msdm", OFFLINE, ("--libvirt", "9.0.0")),
}


@pytest.mark.parametrize(
    ("flags", "assumed"),
    [
        (
            OFFLINE,
            "the pod's CPUs and the node's cores and NUMA nodes are not known here: assumed 0-7 and one NUMA node; ",
        ),
        ((*OFFLINE, "--cpuset", "8-15"), "the node's cores and NUMA nodes are not known here: assumed one NUMA node; "),
        (
            ("--cpuset", "8-11,60000-60003"),
            "the node's cores and NUMA nodes are not known here: assumed one NUMA node; ",
        ),
        (("--sysfs", FIXTURES / "sysfs/two-rtx-3090"), "the pod's CPUs are not known here: assumed 0-3,16-19; "),
    ],
)
def test_dedicated_cpus_that_are_not_known_are_assumed_with_a_warning(
    flags: tuple[str | Path, ...], assumed: str, capfd: "pytest.CaptureFixture[str]"
) -> None:
    """Three refusals in turn: without --cpuset, without --sysfs, and "expected the cpuset and the sysfs of one
    machine" for the CPUs of another machine than this one."""
    rendered = answer(capfd, "render", VMS / "dedicated-cpus.yaml", *flags)
    assert rendered.stderr.startswith(
        f"gpu-launcher: warning: {VMS / 'dedicated-cpus.yaml'}:9: spec.domain.cpu.dedicatedCpuPlacement: "
        f"{assumed}expected --"
    )
    assert (rendered.stderr.count("\n"), rendered.stdout.count("<vcpupin"), rendered.code) == (1, 8, 0)


def test_a_machine_of_red_hats_is_warned_of_and_mapped_where_it_may_be(
    capfd: "pytest.CaptureFixture[str]", tmp_path: Path
) -> None:
    text = vmi_text(domain="    machine: {type: pc-q35-rhel9.4.0}\n")
    (tmp_path / "vm.yaml").write_text(text)
    nearest = "{name: vm, annotations: {gpu-launcher.dev/machine: nearest}}"
    (tmp_path / "nearest.yaml").write_text(text.replace("{name: vm}", nearest))
    warning = "spec.domain.machine.type: pc-q35-rhel9.4.0 is a machine of another build of QEMU"
    for command, *flags in (("render", *OFFLINE), ("pod", "--image", "l")):
        warned, mapped = (answer(capfd, command, tmp_path / f"{vm}.yaml", *flags) for vm in ("vm", "nearest"))
        assert (warning in warned.stderr, warning in mapped.stderr, warned.code, mapped.code) == (True, False, 0, 0)
        if command == "render":
            assert ('machine="pc-q35-rhel9.4.0"' in warned.stdout, 'machine="pc-q35-8.2"' in mapped.stdout) == (
                True,
                True,
            )


def test_each_flag_of_render_is_tried_on_explain(gpu_launcher: Command) -> None:
    renders, explains = (
        set(re.findall(r"^ +(?:-[a-z], )?(--[a-z-]+)", gpu_launcher(command, "--help").stdout, re.MULTILINE))
        for command in ("render", "explain")
    )
    assert renders - {"--help"} == FLAGS.keys()
    assert explains - renders == {"--json", "--output", "--svg"}
    assert renders <= explains


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_changes_explain_as_it_changes_render(
    flag: str, capfd: "pytest.CaptureFixture[str]", tmp_path: Path
) -> None:
    """The same warnings, the same errors and exit codes; and what explain shows is the new domain's."""
    (tmp_path / "pod.env").write_text(f"{RTX_2060_VARIABLE}=0000:01:00.0\n")
    vm, without, given = FLAGS[flag]
    given = tuple(tmp_path / word if word == "pod.env" else word for word in given)
    before, after = (answer(capfd, "render", VMS / f"{vm}.yaml", *flags) for flags in (without, (*without, *given)))
    assert before != after
    told, told_anew = (answer(capfd, "explain", VMS / f"{vm}.yaml", *flags) for flags in (without, (*without, *given)))
    assert told != told_anew
    assert [(each.stderr, each.code) for each in (told, told_anew)] == [
        (each.stderr, each.code) for each in (before, after)
    ]
    assert [bool(each.stdout) for each in (told, told_anew)] == [bool(each.stdout) for each in (before, after)]
