import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launcher.vm.annotations import read_annotations
from launcher.vm.cpu.manifest import CPU
from program.document import read_documents
from program.errors import UserError
from tests.launcher.cases import Case, cases
from tests.launcher.vms import RTX_2060, read_manifest, vmi_text, without_lines
from tests.processes import FIXTURES, ROOT


def problem_of(path: Path, text: str) -> str:
    """The one line that refuses this manifest, without the file's name."""
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_manifest(path)
    line = str(error.value)
    assert "\n" not in line
    return without_lines(line, path).removeprefix(f"{path}: ")


def problems_of(path: Path, text: str) -> list[str]:
    """The lines that refuse this manifest, without the file's name."""
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_manifest(path)
    return [without_lines(line, path).removeprefix(f"{path}: ") for line in error.value.lines]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vm.yaml"


def test_a_virtual_machine_is_read_by_its_template() -> None:
    vmi = read_manifest(FIXTURES / "vms" / "seed-001.yaml")
    assert (vmi.metadata.namespace, vmi.metadata.name) == ("cxl", "vm-with-gpu")
    assert [(gpu.name, gpu.deviceName) for gpu in vmi.spec.domain.devices.gpus] == [("gpu0", RTX_2060)]
    assert vmi.spec.domain.resources.request("memory") == 1 << 30


def test_null_is_absence_also_for_what_is_not_converted(path: Path) -> None:
    path.write_text(vmi_text(domain="    cpu:\n    machine: null\n") + "  networks:\n  volumes: []\n")
    assert read_manifest(path).spec.domain.cpu == CPU()


def test_json_is_yaml_too(path: Path) -> None:
    path.write_text(
        '{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"},'
        ' "spec": {"domain": {}}}'
    )
    assert read_manifest(path).metadata.namespace == "default"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        # Unknown fields, by their path.
        (("gpus:", "gpu:"), "spec.domain.devices.gpu: not a field that gpu-launcher knows; did you mean gpus?"),
        (
            ("memory:", "zebra: {}\n    memory:"),
            "spec.domain.zebra: not a field that gpu-launcher knows; known here: cpu, memory, resources,",
        ),
        (("deviceName:", "xyz: x, deviceName:"), "spec.domain.devices.gpus[0].xyz: not a field that"),
        # Fields of KubeVirt's that nothing is made of.
        (
            ("devices:\n", "devices:\n      clientPassthrough: {}\n"),
            "spec.domain.devices.clientPassthrough: is not converted",
        ),
        # Values.
        (("name: gpu1", "name: gpu.1"), "spec.domain.devices.gpus[0].name: 'gpu.1' cannot be part of a libvirt alias"),
        (("name: gpu1", "name: ''"), "spec.domain.devices.gpus[0].name: '' cannot be part of a libvirt alias"),
        (("name: gpu1", "name: 1"), "spec.domain.devices.gpus[0].name: found 1; expected a valid string"),
        (("name: gpu1, ", ""), "spec.domain.devices.gpus[0].name: is missing"),
        ((RTX_2060, "RTX 2060"), "spec.domain.devices.gpus[0].deviceName: 'RTX 2060' is no resource name"),
        (("guest: 1Gi", "guest: 1Qi"), "spec.domain.memory.guest: '1Qi' is not a quantity"),
        (("{guest: 1Gi}", "1Gi"), "spec.domain.memory: found '1Gi'; expected a mapping"),
        (
            ("memory:", "machine: {type: pc}\n    memory:"),
            "spec.domain.machine.type: 'pc' is no machine with PCI Express; expected q35",
        ),
        (("memory:", "cpu: {cores: '2'}\n    memory:"), "spec.domain.cpu.cores: found '2'; expected a valid integer"),
        (("memory:", "cpu: {cores: true}\n    memory:"), "spec.domain.cpu.cores: found True; expected a valid integer"),
        (("memory:", "cpu: {features: {}}\n    memory:"), "spec.domain.cpu.features: found {}; expected a list"),
        (
            ("memory:", "cpu: {cores: -1}\n    memory:"),
            "spec.domain.cpu.cores: found -1; expected a number greater than or equal to 0",
        ),
        (
            ("memory:", "cpu: {cores: 99999999999999999999}\n    memory:"),
            "spec.domain.cpu.cores: found 99999999999999999999; expected a number less than 4294967296",
        ),
        (
            ("memory:", 'firmware: {serial: "a\\x01"}\n    memory:'),
            "spec.domain.firmware.serial: has the character '\\x01', which XML cannot hold; expected text",
        ),
        (("memory:", "firmware: {uuid: x}\n    memory:"), "spec.domain.firmware.uuid: 'x' is not a UUID"),
        (
            ("memory:", "firmware: {bootloader: {bios: {}, efi: {}}}\n    memory:"),
            "spec.domain.firmware.bootloader: has both bios and efi",
        ),
        (
            ("memory:", "firmware: {kernelBoot: {container: {image: x}}}\n    memory:"),
            "spec.domain.firmware.kernelBoot.container: has no kernelPath; expected",
        ),
        (
            ("memory:", "firmware: {kernelBoot: {container: {image: x, kernelPath: /../etc/shadow}}}\n    memory:"),
            "spec.domain.firmware.kernelBoot.container.kernelPath: '/../etc/shadow'; expected an absolute path of",
        ),
        (("{name: vm}", "{name: VM/1}"), "metadata.name: 'VM/1' is no Kubernetes name"),
        (("{name: vm}", "{name: a..b}"), "metadata.name: 'a..b' is no Kubernetes name"),
        (("{name: vm}", "{name: a-.b}"), "metadata.name: 'a-.b' is no Kubernetes name"),
        (("{name: vm}", f"{{name: {'a' * 254}}}"), f"metadata.name: '{'a' * 20}"),
        (("{name: vm}", "{name: vm, namespace: a.b}"), "metadata.namespace: 'a.b' is no DNS label"),
        (("{name: vm}", f"{{name: vm, namespace: {'a' * 64}}}"), f"metadata.namespace: '{'a' * 20}"),
        # Not ours at all.
        (("VirtualMachineInstance", "Pod"), "kind: found 'Pod'; expected a VirtualMachine or VirtualMachineInstance"),
        (
            ("kubevirt.io/v1", "kubevirt.io/v2"),
            "apiVersion: found 'kubevirt.io/v2'; expected 'kubevirt.io/v1' or 'kubevirt.io/v1alpha3'",
        ),
    ],
)
def test_what_cannot_be_converted_is_refused_by_its_path(path: Path, change: tuple[str, str], problem: str) -> None:
    text = vmi_text(gpus=[("gpu1", RTX_2060)])
    assert change[0] in text
    assert problem_of(path, text.replace(*change, 1)).startswith(problem)


def test_a_misspelt_field_is_named_before_the_one_that_is_missing_for_it(path: Path) -> None:
    text = vmi_text(domain="      disks: [{nam: root}]\n")
    misspelt, missing = problems_of(path, text)
    assert misspelt == "spec.domain.devices.disks[0].nam: not a field that gpu-launcher knows; did you mean name?"
    assert missing == "spec.domain.devices.disks[0].name: is missing; add it"


def test_all_that_is_wrong_is_said_each_by_its_path(path: Path) -> None:
    text = vmi_text(domain="    cpus: {}\n    cpu: {core: 2, sockets: many}\n    device: {}\n")
    assert [line.partition(": ")[0] for line in problems_of(path, text)] == [
        "spec.domain.cpu.core",
        "spec.domain.cpus",
        "spec.domain.device",
        "spec.domain.cpu.sockets",
    ]


def test_what_parts_of_a_manifest_demand_of_each_other_is_said_at_once(path: Path) -> None:
    disks = "      disks: [{name: a}, {name: b}]\n      interfaces: [{name: c, masquerade: {}}]\n"
    assert problems_of(path, vmi_text(domain=disks).replace("      autoattachPodInterface: false\n", "")) == [
        f"spec.domain.devices.{problem}"
        for problem in (
            "disks[0]: the disk 'a' has no volume; expected one of that name in volumes",
            "disks[1]: the disk 'b' has no volume; expected one of that name in volumes",
            "interfaces[0]: the interface 'c' has no network; expected `{name: c, pod: {}}` in networks",
        )
    ]


def test_of_many_the_first_twenty_are_said_and_how_many_more(path: Path) -> None:
    path.write_text(vmi_text(domain="".join(f"    x{number}: 1\n" for number in range(23))))
    with pytest.raises(UserError) as error:
        read_manifest(path)
    assert (len(error.value.lines), error.value.lines[-1]) == (21, "and 3 more")


@pytest.mark.parametrize("value", ["null", "''", "false", "[]"])
def test_a_misspelt_field_is_refused_whatever_it_says(path: Path, value: str) -> None:
    line = problem_of(path, vmi_text(domain=f"    device: {value}\n"))
    assert line == "spec.domain.device: not a field that gpu-launcher knows; did you mean devices?"


def test_a_key_that_is_no_text_is_no_field(path: Path) -> None:
    line = problem_of(path, vmi_text(domain="    1: x\n"))
    assert line.startswith("spec.domain.1: not a field that gpu-launcher knows; known here: cpu, memory,")


def test_an_error_in_a_virtual_machines_template_has_its_path_there(path: Path) -> None:
    vm = """
        apiVersion: kubevirt.io/v1
        kind: VirtualMachine
        metadata: {name: vm}
        spec:
          template:
            metadata: {annotations: {gpu-launcher.dev/seats: '{"gpu1": 1}'}}
            spec: {domain: {}}
    """
    assert problem_of(path, vm) == (
        "spec.template.metadata.annotations: gpu-launcher.dev/seats: 'gpu1' is no entry of gpus or hostDevices; "
        "expected a name of theirs, here none"
    )


@pytest.mark.parametrize(
    ("roms", "problem"),
    [
        ("off", "'off'; expected a JSON object like '{\"gpu1\": \"roms/gpu.rom\"}'"),
        ('{"gpu1": 1}', "'gpu1' has 1; expected 'off', or a volume"),
        ('{"gpu1": "roms"}', "'gpu1' has 'roms'; expected 'off', or a volume"),
        ('{"gpu1": "roms/../gpu.rom"}', "'gpu1' has 'roms/../gpu.rom'; expected 'off', or a volume"),
        ('{"gpu1": "roms//gpu.rom"}', "'gpu1' has 'roms//gpu.rom'; expected 'off', or a volume"),
        ('{"gpu1": "/roms/gpu.rom"}', "'gpu1' has '/roms/gpu.rom'; expected 'off', or a volume"),
        ('{"gpu1": "roms/a\\u0000"}', "'gpu1' has 'roms/a\\x00'; expected 'off', or a volume"),
        ('{"gpu1": "off", "gpu1": "off"}', "'gpu1' is there twice; leave one of them out"),
        ('{"gpu2": "off"}', "'gpu2' is no entry of gpus or hostDevices; expected a name of theirs, here 'gpu1'"),
        ('{"gpu1": "other/gpu.rom"}', "'gpu1' has a ROM of the volume 'other', which is not in volumes; expected one"),
        ('{"gpu1": "empty/gpu.rom"}', "'gpu1' has a ROM of the volume 'empty', which is of kind emptyDisk; expected"),
    ],
)
def test_a_rom_that_cannot_be_is_refused(path: Path, roms: str, problem: str) -> None:
    annotation = json.dumps({"gpu-launcher.dev/rom": roms})
    text = vmi_text(gpus=[("gpu1", RTX_2060)]).replace("{name: vm}", f"{{name: vm, annotations: {annotation}}}")
    line = problem_of(path, text + "  volumes: [{name: empty, emptyDisk: {capacity: 1Mi}}]\n")
    assert line.startswith(f"metadata.annotations: gpu-launcher.dev/rom: {problem}")


OURS = {"image": "registry.example.com:5000/team/gpu-launcher:0.1.0", "args": ["hook"]}
OTHERS = (
    [OURS, {"image": "registry.example.com/other:1"}],
    [{"image": "gpu-launcher-of-others:1", "args": ["hook"]}],
    [{"image": "gpu-launcher:0.1.0", "args": ["run", "hook"]}],
    [{**OURS, "command": ["sh"]}],
    [{**OURS, "configMap": {"name": "a", "key": "b", "hookPath": "/usr/bin/onDefineDomain"}}],
    [{"image": "gpu-launcher:0.1.0"}],
    ["gpu-launcher"],
    OURS,
    None,
)


def hooked(sidecars: object) -> str:
    annotation = json.dumps({"hooks.kubevirt.io/hookSidecars": json.dumps(sidecars)})
    return vmi_text(gpus=[("gpu1", RTX_2060)]).replace("{name: vm}", f"{{name: vm, annotations: {annotation}}}")


@pytest.mark.parametrize(
    "sidecar",
    [OURS, {"image": "gpu-launcher@sha256:abc", "imagePullPolicy": "Always", "args": ["hook", "--sysfs", "/sys"]}],
)
def test_a_vm_that_kubevirt_runs_with_our_hook_is_taken_as_it_is(path: Path, sidecar: object) -> None:
    path.write_text(hooked([sidecar]))
    assert read_manifest(path).metadata.annotations.written["hooks.kubevirt.io/hookSidecars"]


def test_what_kubevirt_makes_nothing_of_is_nothing_to_the_hook_beside_it() -> None:
    """Its launcher leaves out a text without "ignition" in it; only ours refuses that."""
    given = {"kubevirt.io/ignitiondata": "variant: fcos", "sidecar.istio.io/inject": "yes"}
    assert read_annotations(given).written == given


@pytest.mark.parametrize("sidecars", OTHERS)
def test_any_other_hook_sidecar_is_refused(path: Path, sidecars: object) -> None:
    assert problem_of(path, hooked(sidecars)) == (
        "metadata.annotations: hooks.kubevirt.io/hookSidecars is not converted: hook sidecars are not asked; leave it "
        "out, and see the XML with render; gpu-launcher's own (image gpu-launcher, args ['hook']) may stay"
    )


@pytest.mark.parametrize(
    "name",
    [
        "container.apparmor.security.beta.kubernetes.io/compute",
        "seccomp.security.alpha.kubernetes.io/pod",
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "rdt.resources.beta.kubernetes.io/pod",
        "blockio.resources.beta.kubernetes.io/container.compute",
        "target.workload.openshift.io/management",
        "resources.workload.openshift.io/compute",
        "io.crio/workload",
        "io.kubernetes.cri-o.Devices",
        "io.kubernetes.cri.untrusted-workload",
        "io.containerd.rdt-class",
        "org.systemd.property.ExecStartPre",
        "org.criu.config",
        "com.github.containers.virtcontainers.Runtime",
        "seccomp-profile.kubernetes.cri-o.io/POD",
        "userns-mode.crio.io",
        "io.containers.trace-syscall",
        "devices.noderesource.dev",
        "ulimits.nri.containerd.io/container.compute",
        "mounts.nri.io/pod",
        "cdi.k8s.io/gpu",
        "run.oci.keep_original_groups",
        "io.katacontainers.config.hypervisor.path",
        "dev.gvisor.flag.debug",
    ],
)
def test_an_annotation_by_which_a_runtime_gives_more_than_the_pod_says_is_refused(path: Path, name: str) -> None:
    annotated = f"{{name: vm, annotations: {{{name}: x}}}}"
    assert problem_of(path, vmi_text().replace("{name: vm}", annotated)) == (
        f"metadata.annotations: {name!r} changes what the pod's container may do, behind the pod's own fields; "
        "leave it out: the pod has what the VM needs"
    )


UNKNOWN = "not a field that gpu-launcher knows; known here:"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("volumes: [{cloudInitNoCloud: {metaData: x}}]", f"volumes[0].cloudInitNoCloud.metaData: {UNKNOWN} userData, "),
        (
            "domain: {launchSecurity: {tdx: {attestation: {}}}}",
            f"domain.launchSecurity.tdx.attestation: {UNKNOWN} noth",
        ),
        ("domain: {launchSecurity: {tdx: {session: QQ==}}}", f"domain.launchSecurity.tdx.session: {UNKNOWN} nothing"),
        (
            "domain: {launchSecurity: {sev: {attestatoin: {}}}}",
            f"domain.launchSecurity.sev.attestatoin: {UNKNOWN} poli",
        ),
        ("domain: {devices: {gpus: [{memory: 8Gi}]}}", f"domain.devices.gpus[0].memory: {UNKNOWN} name, "),
        ("users: []", f"users: {UNKNOWN} domain, "),
        ("volumes: [{capacity: 1Gi}]", f"volumes[0].capacity: {UNKNOWN} name, "),
        ("domain: {policy: {}}", f"domain.policy: {UNKNOWN} cpu, "),
        (
            "domain: {hugepages: {}}",
            "domain.hugepages: is in the wrong place; write it as spec.domain.memory.hugepages",
        ),
        (
            "domain: {devices: {networks: []}}",
            "domain.devices.networks: is in the wrong place; write it as spec.networks",
        ),
        (
            "domain: {devices: {gpuS: []}}",
            "domain.devices.gpuS: not a field that gpu-launcher knows; did you mean gpus?",
        ),
    ],
)
def test_a_hint_names_no_field_that_is_refused_or_means_something_else(path: Path, spec: str, problem: str) -> None:
    kind = "apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: vm}"
    lines = problems_of(path, f"{{{kind}, spec: {{{spec}}}}}")
    assert any(line.startswith(f"spec.{problem}") for line in lines), lines


def test_an_annotation_of_somebody_elses_is_passed_on(path: Path) -> None:
    for name in ("notcrio.io/x", "crio.io.example.com/x", "example.com/io.containers.x", "k8s.v1.cni.cncf.io/networks"):
        path.write_text(vmi_text().replace("{name: vm}", f"{{name: vm, annotations: {{{name}: x}}}}"))
        assert read_manifest(path).metadata.annotations.written == {name: "x"}


def test_two_entries_with_one_name_are_refused_in_either_list(path: Path) -> None:
    one_list = vmi_text(gpus=[("a", RTX_2060), ("a", RTX_2060)])
    both_lists = vmi_text(gpus=[("a", RTX_2060)]).replace(
        "gpus:", f"hostDevices: [{{name: a, deviceName: {RTX_2060}}}]\n      gpus:"
    )
    for text, second in ((one_list, "gpus[1]"), (both_lists, "hostDevices[0]")):
        assert problem_of(path, text) == (
            f"spec.domain.devices.{second}: is called 'a', as gpus[0] is; rename one of them"
        )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [b", "is not YAML: the [ of line 1 is not closed, or a comma is missing; add ] or the comma"),
        ("a: 1\na: 2", "is not YAML: the key 'a' is there twice"),
        ("a: 1\n---\n- 2", "found [2]; expected a VirtualMachine or VirtualMachineInstance"),
        ("{[a]: 1}", "is not YAML: a mapping or a list is a key; expected text, in quotes"),
        (
            "a: !!python/object:os.system {}",
            "is not YAML: the tag 'tag:yaml.org,2002:python/object:os.",
        ),
        ("a: !!set {b, c}", "is not YAML: the tag 'tag:yaml.org,2002:set' is unknown here"),
        ("a: &b 1\nc: &b 2", "is not YAML: found duplicate anchor"),
        ("a: *b", "is not YAML: found undefined alias"),
        ("a: {<<: [b]}", "is not YAML: << merges a mapping, or a list of mappings"),
        ("&a [*a]", "found [[[[...]]]]; expected a VirtualMachine or VirtualMachineInstance"),
        ("[" * 100_000, "is not YAML: nested more than 100 levels deep"),
        ("- " * 3000, "is not YAML: nested more than 100 levels deep"),
        ("a: !!bool maybe", "is not YAML: "),
        ("a: !!int ''", "is not YAML: "),
        ("a: !!timestamp now", "is not YAML: "),
        ("\0", "is no text: it has bytes of zero"),
        ("when: !!timestamp 2001-99-99", "is not YAML: month must be in 1..12"),
        ("", "is empty; expected a VirtualMachine or VirtualMachineInstance"),
        ("- 1", "found [1]; expected a VirtualMachine or VirtualMachineInstance"),
    ],
)
def test_what_is_not_a_manifest_is_one_line(path: Path, text: str, problem: str) -> None:
    assert problem_of(path, text).startswith(problem)


def test_a_file_that_is_not_text_is_one_line(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is text in UTF-16; save it as UTF-8"):
        read_manifest(path)


def test_a_missing_file_is_one_line(path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file or directory"):
        read_manifest(path)


def test_a_mapping_merged_into_another_is_not_a_key_twice(path: Path) -> None:
    merged = "mine: {a: &a {name: q}, b: {c: &c {<<: *a, name: z}}, d: {<<: *c}}"
    path.write_text(vmi_text().replace("metadata: {name: vm}", f"metadata: {{name: vm, {merged}}}"))
    assert read_manifest(path).metadata.name == "vm"


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_document_is_what_pyyaml_makes_of_it(case: Case) -> None:
    text = case.vm.read_text().replace("52:54:00:12:34:56", "'52:54:00:12:34:56'")
    assert [document.value for document in read_documents(text)] == [
        value for value in yaml.load_all(text, yaml.CSafeLoader) if value
    ]


def test_a_cpu_feature_has_libvirts_name(path: Path) -> None:
    path.write_text(vmi_text(domain="    cpu: {model: Skylake-Server-v4, features: [{name: sse4.2}]}\n"))
    assert read_manifest(path).spec.domain.cpu.features[0].name == "sse4.2"
    line = problem_of(path, vmi_text(domain="    cpu: {model: a b}\n"))
    assert line.startswith("spec.domain.cpu.model: 'a b' is not the name of a CPU model")


@pytest.mark.parametrize("bomb", ["[*{0}, *{0}, *{0}, *{0}]", "{{<<: [*{0}, *{0}, *{0}, *{0}]}}"])
def test_a_document_that_holds_too_much_with_its_aliases_written_out_is_refused(path: Path, bomb: str) -> None:
    text = "a0: &a0 {k: v}\n" + "".join(f"a{n + 1}: &a{n + 1} {bomb.format(f'a{n}')}\n" for n in range(30))
    line = problem_of(path, text)
    assert line.startswith("is not YAML: holds more than 100000 values, with its aliases written out; expected")


def test_a_number_of_thousands_of_digits_is_one_line(path: Path) -> None:
    line = problem_of(path, vmi_text(name=f"0x{'f' * 5000}"))
    assert line == "metadata.name: found a number of thousands of digits; expected a valid string"


def test_no_object_is_built_that_is_not_in_the_manifest() -> None:
    program = (
        "from launcher.vm import spec\n"
        "from launcher.manifest.parser import vm_in\n"
        f"vm_in({vmi_text()!r})\n"
        "kinds = (spec.Spec, spec.Domain, spec.CPU, spec.Clock, spec.Firmware, spec.Volume, spec.Probe)\n"
        "print(*(kind.__name__ for kind in kinds if kind.__pydantic_complete__))"
    )
    result = subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, capture_output=True, text=True)
    assert result.stdout == "Spec Domain\n"
