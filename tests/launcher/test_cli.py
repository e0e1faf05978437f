"""gpu-launcher as people call it: a process, its arguments, its environment, what it prints and its exit code."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Command, Machine
from tests.launcher.cases import case
from tests.launcher.vms import RTX_2060, RTX_2060_VARIABLE, RTX_3090_VARIABLE, write_vmi
from tests.processes import BIN, FIXTURES
from tests.waiting import allowed

ONE_GPU = FIXTURES / "vms" / "one-gpu.yaml"
TWO_GPUS = FIXTURES / "vms" / "two-gpus.yaml"
VALUE = f"--env={RTX_2060_VARIABLE}="
AUDIO = "--env=PCI_RESOURCE_EXAMPLE_COM_AUDIO=0000:01:00.1"


def golden(name: str) -> str:
    return (FIXTURES / "domains" / f"{name}.xml").read_text()


def test_render_prints_the_domain_and_nothing_else(gpu_launcher: Command, machine: Machine) -> None:
    result = gpu_launcher(
        "render", ONE_GPU, "--env", f"{RTX_2060_VARIABLE}=0000:01:00.0", "--sysfs", machine("rtx-2060")
    )
    assert (result.stdout, result.stderr, result.returncode) == (golden("rtx-2060"), "", 0)


def test_without_env_the_pods_environment_counts(gpu_launcher: Command, machine: Machine) -> None:
    environ = {RTX_2060_VARIABLE: "0000:01:00.0"}
    result = gpu_launcher("render", ONE_GPU, "--sysfs", machine("rtx-2060"), env=environ)
    assert (result.stdout, result.stderr, result.returncode) == (golden("rtx-2060"), "", 0)


def test_without_env_and_sysfs_this_machines_sys_counts(gpu_launcher: Command) -> None:
    result = gpu_launcher("render", ONE_GPU, env={RTX_2060_VARIABLE: "00ff:ff:1f.0"})
    assert "00ff:ff:1f.0 is not in sysfs, and so it goes without companions" in result.stderr
    assert result.returncode == 0


def test_what_an_old_libvirt_does_not_know_is_printed_and_named(gpu_launcher: Command) -> None:
    result = gpu_launcher("render", FIXTURES / "vms" / "acpi-msdm.yaml")
    assert (result.stdout, result.returncode) == (golden("acpi-msdm"), 0)
    assert result.stderr == (
        "gpu-launcher: warning: firmware.acpi.msdmNameRef: <table type='msdm'> needs libvirt 11.2.0; "
        "take a newer libvirt, or leave out what asks for it\n"
    )


def test_with_libvirts_version_what_it_does_not_know_is_refused(gpu_launcher: Command) -> None:
    vm = FIXTURES / "vms" / "acpi-msdm.yaml"
    old, new = (gpu_launcher("render", vm, "--libvirt", version) for version in ("9.0.0", "11.2"))
    assert old.stderr.startswith(
        "gpu-launcher: firmware.acpi.msdmNameRef: <table type='msdm'> needs libvirt 11.2.0, and this is 9.0.0; "
    )
    assert (old.stderr.count("\n"), old.stdout, old.returncode) == (1, "", 1)
    assert (new.stdout, new.stderr, new.returncode) == (golden("acpi-msdm"), "", 0)


def test_with_env_the_environment_and_sys_are_not_read(gpu_launcher: Command) -> None:
    result = gpu_launcher("render", TWO_GPUS, "--env", "X=1", env={RTX_3090_VARIABLE: "0000:01:00.0,0000:e1:00.0"})
    assert f"{RTX_3090_VARIABLE} is not set" in result.stderr
    assert result.returncode == 2


def test_without_sysfs_function_0_goes_alone_and_stderr_says_so(gpu_launcher: Command) -> None:
    result = gpu_launcher("render", ONE_GPU, "--env", f"{RTX_2060_VARIABLE}=0000:01:00.0")
    assert (result.stdout, result.returncode) == (golden("rtx-2060-without-sysfs"), 0)
    assert result.stderr == (
        "gpu-launcher: warning: gpu 'gpu1': 0000:01:00.0 was not looked up: there is no --sysfs, and so it goes "
        "without companions; expected the sysfs of the pod's node: name a copy of it with --sysfs, as gpu-plugin "
        "record makes it\n"
    )


def test_an_address_that_is_not_in_sysfs_goes_alone_and_stderr_says_so(gpu_launcher: Command, machine: Machine) -> None:
    sys = machine("two-rtx-3090")
    result = gpu_launcher("render", ONE_GPU, "--env", f"{RTX_2060_VARIABLE}=0000:86:00.0", "--sysfs", sys)
    assert result.stdout.count("<hostdev") == 1
    assert "0000:86:00.0 is not in sysfs, and so it goes without companions" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        f"# a pod's variables\n\n{RTX_3090_VARIABLE}=0000:e1:00.0,0000:01:00.0\nHOME=/ with blanks\n",
        f'declare -x {RTX_3090_VARIABLE}="0000:e1:00.0,0000:e1:00.1,0000:01:00.0,0000:01:00.1"\n',
        f"declare -x OLDPWD\ndeclare -rx {RTX_3090_VARIABLE}='0000:e1:00.0,0000:01:00.0'\n",
        f"\ufeffexport {RTX_3090_VARIABLE}='0000:e1:00.0,0000:01:00.0'\n",
    ],
    ids=["env", "declare", "declare-without-value", "export-after-a-byte-order-mark"],
)
def test_an_env_file_is_what_env_or_export_print_in_a_pod(
    gpu_launcher: Command, machine: Machine, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "pod.env"
    path.write_text(text)
    result = gpu_launcher("render", TWO_GPUS, "--env-file", path, "--sysfs", machine("two-rtx-3090"))
    assert (result.stdout, result.stderr, result.returncode) == (golden("seed-000-older-dialect"), "", 0)


def test_env_wins_over_the_env_file(gpu_launcher: Command, tmp_path: Path) -> None:
    path = tmp_path / "pod.env"
    path.write_text(f"{RTX_2060_VARIABLE}=0000:ff:00.0\n")
    result = gpu_launcher("render", ONE_GPU, "--env-file", path, "--env", f"{RTX_2060_VARIABLE}=0000:01:00.0")
    assert result.stdout == golden("rtx-2060-without-sysfs")


def test_what_is_left_over_is_a_warning(gpu_launcher: Command) -> None:
    result = gpu_launcher("render", ONE_GPU, "--env", f"{RTX_2060_VARIABLE}=0000:86:00.0,0000:af:00.0")
    assert result.returncode == 0
    assert result.stderr.startswith(f"gpu-launcher: warning: {RTX_2060_VARIABLE}: has 0000:af:00.0 left over")


@pytest.mark.parametrize("command", ["render", "explain"])
def test_a_card_of_an_unknown_node_is_a_warning(command: str, gpu_launcher: Command, machine: Machine) -> None:
    vm = FIXTURES / "vms" / "topology-numa-unknown.yaml"
    cards = "--env=PCI_RESOURCE_EXAMPLE_COM_CARD=0000:01:00.0,0000:41:00.0"
    result = gpu_launcher(command, vm, cards, "--sysfs", machine("lab-modern"))
    assert result.returncode == 0
    assert result.stderr == (
        "gpu-launcher: warning: gpu 'gpu1': 0000:01:00.0 is on a NUMA node that the host's firmware does not tell: "
        "it is on bus 0, in no NUMA cell; let the kubelet's topology manager give CPUs of the card's node, or leave "
        "gpu-launcher.dev/topology out\n"
    )


def test_explain_says_where_the_guest_sees_a_card_of_another_cell(gpu_launcher: Command, machine: Machine) -> None:
    vm = FIXTURES / "vms" / "topology-numa.yaml"
    cards = f"--env={RTX_3090_VARIABLE}=0000:01:00.0,0000:e1:00.0"
    result = gpu_launcher("explain", vm, cards, "--json", "--sysfs", machine("two-rtx-3090"))
    entries = json.loads(result.stdout)["entries"]
    assert [entry["passed"][0]["guest"] for entry in entries] == ["0000:e0:00.0", "0000:bf:00.0"]


def test_a_companion_is_not_left_over(gpu_launcher: Command, machine: Machine) -> None:
    result = gpu_launcher("render", ONE_GPU, VALUE + "0000:01:00.0", AUDIO, "--sysfs", machine("rtx-2060"))
    assert (result.stdout, result.stderr, result.returncode) == (golden("rtx-2060"), "", 0)


def test_a_sysfs_that_is_named_is_looked_at_also_without_devices(gpu_launcher: Command) -> None:
    result = gpu_launcher("render", FIXTURES / "vms" / "no-devices.yaml", "--sysfs", "x" * 300)
    assert "expected a sysfs tree" in result.stderr
    assert (result.stderr.count("\n"), result.returncode) == (1, 2)


def test_line_breaks_from_outside_break_no_line(gpu_launcher: Command) -> None:
    result = gpu_launcher("render", ONE_GPU, "--env", "A\nB")
    assert (result.stderr, result.returncode) == (
        "gpu-launcher: --env A\\nB: has no name and value; expected NAME=VALUE\n",
        2,
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--env=X=1"], "gpu 'gpu1': asks for nvidia.com/TU106_GEFORCE_RTX_2060_REV__A, but PCI_RESOURCE_"),
        ([VALUE], f"gpu 'gpu1': asks for {RTX_2060}, but {RTX_2060_VARIABLE} is empty"),
        ([VALUE + "0000:41:00x0"], f"gpu 'gpu1': asks for {RTX_2060}, but {RTX_2060_VARIABLE}: '0000:41:00x0' is not"),
        (["--env=X"], "--env X: has no name and value; expected NAME=VALUE"),
        (["--env-file=/nowhere"], "/nowhere: cannot be read"),
        (["--env-file=/dev/zero"], "/dev/zero: has more than 4194304 bytes"),
        (["--network-status=/dev/zero"], "/dev/zero: has more than 1048576 bytes"),
        ([VALUE + "0000:01:00.0", "--sysfs=/nowhere"], "/nowhere: expected a sysfs tree"),
        ([VALUE + "0000:01:00.0", "--libvirt=new"], "--libvirt new: is no version; expected one like 11.3.0"),
        (["--frobnicate"], "No such option: --frobnicate. Try: gpu-launcher render --help"),
    ],
)
def test_a_users_error_is_one_line_and_2(gpu_launcher: Command, arguments: list[str], problem: str) -> None:
    result = gpu_launcher("render", ONE_GPU, *arguments)
    assert result.stderr.startswith(f"gpu-launcher: {problem}")
    assert (result.stderr.count("\n"), result.stdout, result.returncode) == (1, "", 2)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", ":2:1: is not YAML: a value is missing before here, or a [ or { is not closed; "),
        (None, ": cannot be read: No such file or directory"),
        ("apiVersion: kubevirt.io/v1\nkind: Pod\n", ":2: kind: found 'Pod'; expected a VirtualMachine or"),
    ],
)
def test_a_bad_manifest_is_one_line_and_2(
    gpu_launcher: Command, tmp_path: Path, text: str | None, problem: str
) -> None:
    path = tmp_path / "vm.yaml"
    if text is not None:
        path.write_text(text)
    result = gpu_launcher("render", path)
    assert result.stderr.startswith(f"gpu-launcher: {path}{problem}")
    assert (result.stderr.count("\n"), result.stdout, result.returncode) == (1, "", 2)


def test_an_exhausted_variable_is_one_line_and_2(gpu_launcher: Command, tmp_path: Path) -> None:
    vm = write_vmi(tmp_path / "vm.yaml", gpus=[("gpu1", RTX_2060), ("gpu2", RTX_2060)])
    result = gpu_launcher("render", vm, VALUE + "0000:01:00.0")
    assert result.stderr.startswith(
        f"gpu-launcher: gpu 'gpu2': asks for {RTX_2060}, but {RTX_2060_VARIABLE} is exhausted"
    )
    assert (result.stderr.count("\n"), result.stdout, result.returncode) == (1, "", 2)


def test_an_env_file_with_anything_else_in_it_is_refused_by_line(gpu_launcher: Command, tmp_path: Path) -> None:
    path = tmp_path / "pod.env"
    path.write_text('X=1\ndeclare -x Y="never closed\n')
    result = gpu_launcher("render", ONE_GPU, "--env-file", path)
    assert result.stderr.startswith(f"gpu-launcher: {path}: line 2: found ")
    assert result.returncode == 2


def test_a_full_disk_behind_stdout_is_one_line_and_1() -> None:
    command = [str(BIN / "gpu-launcher"), "render", str(FIXTURES / "vms" / "no-devices.yaml")]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.stderr == "gpu-launcher: cannot write: No space left on device\n"
    assert result.returncode == 1


def test_what_volumes_hold_comes_in_by_flags(gpu_launcher: Command) -> None:
    result = gpu_launcher("render", FIXTURES / "vms" / "container-disks.yaml", "--raw-image", "drivers")
    assert (result.stdout, result.stderr, result.returncode) == (golden("container-disks-raw"), "", 0)
    sizes = ("--block-volume", "device", "--block-size", "device=512/4096/0", "--block-size", "file=4096")
    result = gpu_launcher("render", FIXTURES / "vms" / "discard-granularity.yaml", *sizes, "--libvirt", "12.0")
    assert (result.stdout, result.stderr, result.returncode) == (golden("discard-granularity"), "", 0)


def test_a_block_size_that_is_none_is_one_line(gpu_launcher: Command) -> None:
    result = gpu_launcher("render", FIXTURES / "vms" / "no-devices.yaml", "--block-size", "data=big")
    assert result.stderr.startswith(
        "gpu-launcher: --block-size data=big: is no volume's block sizes; expected NAME=LOGICAL/PHYSICAL/DISCARD"
    )
    assert (result.stdout, result.returncode) == ("", 2)


def test_the_pods_cpus_come_in_by_a_flag_and_the_nodes_by_sysfs(gpu_launcher: Command, machine: Machine) -> None:
    vm = FIXTURES / "vms" / "dedicated-cpus.yaml"
    flags = ("--env", "X=1", "--cpuset", "0-3,16-19", "--sysfs", machine("two-rtx-3090"))
    result = gpu_launcher("render", vm, *flags)
    assert (result.stdout, result.stderr, result.returncode) == (golden("dedicated-cpus"), "", 0)


def test_a_pod_runs_on_the_cpus_of_its_cgroup(gpu_launcher: Command, copied_machine: Machine) -> None:
    sys = copied_machine("two-rtx-3090")
    (sys / "fs/cgroup").mkdir(parents=True)
    (sys / "fs/cgroup/cpuset.cpus.effective").write_text("0-3,16-18\n")
    result = gpu_launcher("run", "--vm", FIXTURES / "vms" / "dedicated-cpus.yaml", "--sysfs", sys, "--emulation")
    assert "the guest needs 8 CPUs (8 vCPUs), and the pod has 7 (0-3,16-18)" in result.stderr
    assert (result.stdout, result.returncode) == ("", 1)


def test_explain_says_who_gets_what(gpu_launcher: Command, machine: Machine) -> None:
    flags = [VALUE + "0000:01:00.0,0000:86:00.0", "--sysfs", machine("rtx-2060"), "--emulation"]
    result = gpu_launcher("explain", ONE_GPU, *flags)
    rows = [line.split()[:4] for line in result.stdout.splitlines()]
    assert rows[:3] == [
        ["ENTRY", "HOST", "IS", "GUEST"],
        ["gpu", "gpu1", "0000:01:00.0", "GPU"],
        ["0000:01:00.1", "audio", "0000:01:00.1", "1"],
    ]
    assert result.stdout.endswith(f"left over: 0000:86:00.0 of {RTX_2060_VARIABLE}\n")
    assert result.stderr.startswith(f"gpu-launcher: warning: {RTX_2060_VARIABLE}: has 0000:86:00.0 left over")
    assert (result.stderr.count("\n"), result.returncode) == (1, 0)


def test_explain_is_json_for_programs(gpu_launcher: Command) -> None:
    result = gpu_launcher("explain", ONE_GPU, VALUE + "0000:01:00.0", "--json")
    (entry,) = json.loads(result.stdout)["entries"]
    assert (entry["variable"], entry["alias"]) == (RTX_2060_VARIABLE, "ua-gpu-gpu1")


def test_explain_says_which_partition_a_card_is(gpu_launcher: Command) -> None:
    partition = ("--env", "FABRIC_PARTITION_7=0000:01:00.0")
    result = gpu_launcher("explain", ONE_GPU, VALUE + "0000:01:00.0", *partition)
    assert "gpu1: partition 7 of the Fabric Manager, by itself\n" in result.stdout
    result = gpu_launcher("explain", ONE_GPU, VALUE + "0000:01:00.0", *partition[:1], "FABRIC_PARTITION_7=?")
    wrong = "FABRIC_PARTITION_7: '?' is not a PCI address like 0000:41:00.0"
    assert result.stderr.splitlines()[-1] == (
        f"gpu-launcher: the pod's variables: {wrong}; expected what gpu-plugin sets: its log may say why"
    )
    assert (result.stdout, result.returncode) == ("", 2)


def test_explain_says_what_render_would_refuse(gpu_launcher: Command) -> None:
    result = gpu_launcher("explain", ONE_GPU, VALUE)
    assert result.stderr.startswith(f"gpu-launcher: gpu 'gpu1': asks for {RTX_2060}, but {RTX_2060_VARIABLE} is empty")
    assert (result.stdout, result.returncode) == ("", 2)


def test_what_dra_gave_is_read_where_a_flag_says(gpu_launcher: Command, machine: Machine) -> None:
    vm, flags = FIXTURES / "vms" / "dra-without-vgpu.yaml", ["--dra", FIXTURES / "dra" / "pod"]
    offline = gpu_launcher("render", vm, *flags, "--env", "X=1", "--sysfs", machine("rtx-2060"))
    in_the_pod = gpu_launcher("render", vm, *flags, "--sysfs", machine("rtx-2060"))
    assert offline.stdout == in_the_pod.stdout == golden("dra-without-vgpu")
    assert (offline.stderr, in_the_pod.stderr) == ("", "")


def test_without_a_flag_what_dra_gave_is_read_in_the_pod_and_nowhere_else(gpu_launcher: Command) -> None:
    vm = FIXTURES / "vms" / "dra-without-vgpu.yaml"
    of_the_pod = "/var/run/kubernetes.io/dra-device-attributes"
    in_the_pod = gpu_launcher("render", vm)
    assert f"{of_the_pod}/resourceclaims/team-gpus/gpu: No such file or directory" in in_the_pod.stderr
    offline = gpu_launcher("render", vm, "--env", "X=1")
    assert offline.stderr.endswith(f"expected --dra DIR, a copy of the pod's {of_the_pod}\n")
    assert (in_the_pod.returncode, offline.returncode) == (2, 2)


@pytest.mark.parametrize("seed", ["0", "1", "4294967295"])
@pytest.mark.parametrize("name", ["whole-machine", "mixed-devices", "kubevirt-arm"])
def test_the_same_input_gives_the_same_bytes_in_every_process(name: str, seed: str, tmp_path: Path) -> None:
    """With another order of sets, in another place, without a home, in another language and time zone."""
    environ = {"PATH": "/nowhere", "PYTHONHASHSEED": seed, "LC_ALL": "C", "TZ": "Asia/Kathmandu"}
    command = [BIN / "gpu-launcher", "render", *case(name).arguments()]
    result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, check=False, timeout=allowed(60))
    assert (result.stdout, result.returncode) == (case(name).golden.read_bytes(), 0)


@pytest.mark.parametrize("command", ["render", "explain", "pod", "fit", "check", "run"])
def test_every_command_takes_the_vm_as_its_argument_or_as_vm(
    command: str, gpu_launcher: Command, tmp_path: Path
) -> None:
    """And not as both, nor, but for check, which has a place for it, as neither."""
    vm, nodes = write_vmi(tmp_path / "vm.yaml", gpus=[("gpu", RTX_2060)]), tmp_path / "nodes.json"
    nodes.write_text('{"apiVersion": "v1", "kind": "List", "items": []}')
    flags = {
        "fit": ("--cluster", nodes),
        "check": ("--connect", "test:///default"),
        "run": ("--connect", "test:///default"),
    }.get(command, ())
    argument, option = gpu_launcher(command, vm, *flags), gpu_launcher(command, *flags, f"--vm={vm}")
    assert (argument.stdout, argument.stderr, argument.returncode) == (option.stdout, option.stderr, option.returncode)
    assert str(vm) not in argument.stderr
    assert "VM.yaml" not in argument.stderr
    both = gpu_launcher(command, vm, *flags, "--vm", "other.yaml")
    assert both.stderr.endswith(f" --vm other.yaml: another file is the argument, {vm}; give one of them\n")
    neither = gpu_launcher(command, *flags)
    assert ("Missing argument 'VM.yaml'." in neither.stderr) == (command != "check")
    assert (both.returncode, neither.returncode) == (2, 2)


def test_a_hint_names_flags_of_the_command_that_has_them(gpu_launcher: Command, machine: Machine) -> None:
    """check, run and hook have no --env."""
    checked = gpu_launcher("check", ONE_GPU, "--connect", "test:///default", "--sysfs", machine("rtx-2060"))
    assert f"(offline: gpu-launcher render --env {RTX_2060_VARIABLE}=0000:41:00.0)" in checked.stdout
    assert checked.returncode == 4


def test_what_stays_prints_nothing_of_what_it_is_told(gpu_launcher: Command, tmp_path: Path) -> None:
    vm = write_vmi(tmp_path / "vm.yaml")
    run = gpu_launcher("--", "run", vm, "--connect", "test:///nothing", "--emulation")
    hook = gpu_launcher("--", "hook", "--socket", tmp_path / "away" / "a.sock")
    assert run.stderr.splitlines()[-1].startswith("ERROR libvirt: cannot be reached at test:///nothing: ")
    assert hook.stderr.startswith(f"ERROR {tmp_path}/away/a.sock: cannot listen there: ")
    assert (run.stdout, run.returncode, hook.stdout, hook.returncode) == ("", 1, "", 1)


@pytest.mark.parametrize(
    "flags",
    [("--user=+107",), ("--name", "--user=107"), ("--user=107", "--name", "--give=not-there")],
    ids=["no digits", "a flag's value", "a give that is none"],
)
def test_what_run_did_before_it_read_its_command_line_is_what_that_says(
    flags: tuple[str, ...], gpu_launcher: Command, tmp_path: Path
) -> None:
    result = gpu_launcher("run", write_vmi(tmp_path / "vm.yaml"), *flags, "--connect", "test:///default")
    line = "are read before any other flag, which was not understood so; write each as one word, like --user=107"
    who_may_not = "--user=107: cannot become that user"  # which a user is told before
    assert line in result.stderr or who_may_not in result.stderr
    assert (result.stderr.count("\n"), result.stdout) == (1, "")
