"""docs/getting-started.md as it is run in the lab: its blocks of commands, and a table of what is replaced there.

Whatever is not in the table is run as it stands on the page. tests/test_getting_started.py holds page and table
together without a lab; test_getting_started.py beside this file runs them.
"""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.lab.pods import KERNEL_ARGUMENTS
from tests.processes import ROOT

PAGE = ROOT / "docs" / "getting-started.md"

#: What the page calls a node, and what the lab does.
NODE = "modern"


@dataclass(frozen=True)
class Block:
    """Commands that are copied at one go: the line of the page where they begin, and the heading above them."""

    line: int
    heading: str
    script: str


@dataclass(frozen=True)
class Replaced:
    """Text of a block, or of a file that a block reads, and what stands there in the lab."""

    old: str
    new: str
    why: str


#: The version of the chart that stands for the last release's: the working tree's under another number.
OLDER = "0.0.9"

#: In the blocks. Each stands somewhere in the page.
IN_BLOCKS = (
    Replaced("export NODE=gpu-node-1", f"export NODE={NODE}", "the lab's node"),
    Replaced("make image", ":", "the images of the working tree are made with the lab"),
    Replaced(
        'ctr --namespace k8s.io images import - < "dist/gpu-$program-0.1.0.tar"',
        'ctr --namespace k8s.io images tag "localhost/gpu-$program:lab" "localhost/gpu-$program:0.1.0" '
        f'"localhost/gpu-$program:{OLDER}"',
        "they came to the node on a disk, under another tag",
    ),
    Replaced(
        "helm upgrade --install gpu-plugin deploy/chart",
        "helm upgrade --install gpu-plugin older-chart",
        "the release before, from which section 7 upgrades",
    ),
    Replaced(
        """'sed -i "s/^GRUB_CMDLINE_LINUX=\\"/&intel_iommu=on iommu=pt /" /etc/default/grub && update-grub'""",
        "grep -qw intel_iommu=on /proc/cmdline",
        "the lab's machine has no boot loader: its kernel is told from outside",
    ),
    Replaced(
        "'echo vfio-pci > /etc/modules-load.d/vfio-pci.conf && systemctl reboot'",
        "test -d /sys/bus/pci/drivers/vfio-pci",
        "and it has loaded vfio-pci",
    ),
    Replaced("--timeout=5m", "--timeout=30m", "an emulated node is slow; how slow it may be, Terminal.paste says"),
    Replaced("--timeout=10m", "--timeout=30m", "the same"),
    Replaced("nvidia\\.com/pgpu", "example\\.com/pgpu", "the lab's cards are nobody's of the three vendors"),
    Replaced("PCI_RESOURCE_NVIDIA_COM_PGPU", "PCI_RESOURCE_EXAMPLE_COM_PGPU", "the same"),
    Replaced(
        '--image "$REGISTRY/gpu-launcher:0.1.0" | kubectl apply -f -',
        '--image "$REGISTRY/gpu-launcher:0.1.0"'
        " | sed 's/^      periodSeconds: 5$/      periodSeconds: 30\\n      timeoutSeconds: 30/' | kubectl apply -f -",
        "each look whether it is ready is a process in the container, which takes an emulated processor a second",
    ),
    Replaced(
        "kubectl exec -it with-a-gpu -- gpu-launcher ctl console",
        "{ while sleep 9; do echo; done | timeout 400 kubectl exec -i with-a-gpu -- gpu-launcher ctl console || true; }"
        " | sed '/GUEST tree/,/GUEST end/!d; /GUEST end/q'",
        "nobody types Ctrl-]: it is left when the guest has shown its PCI tree, as it does for Enter",
    ),
    Replaced(
        "> screen.png", "> screen.png; head -c 4 screen.png | tail -c 3", "nobody looks at it: it is said to be one"
    ),
)

#: In files of the clone, by their paths.
IN_FILES: Mapping[str, tuple[Replaced, ...]] = {
    "deploy/chart/templates/configmap.yaml": (
        Replaced(
            '    - vendor: "10de"\n      pci_class: "03"\n'
            "      driver: [vfio-pci, nvgrace_gpu_vfio_pci] # a vGPU is on NVIDIA's driver\n",
            '    - device: "1234:1111"\n',
            "the lab's cards; those of other vendors than the three are bound because a rule names them",
        ),
        Replaced("resource: nvidia.com/pgpu", "resource: example.com/pgpu", "a card's vendor has to be its resource's"),
    ),
    "deploy/example/vm.yaml": (
        Replaced("deviceName: nvidia.com/pgpu", "deviceName: example.com/pgpu", "the lab's cards"),
        Replaced(
            "          cores: 2\n",
            "          cores: 1\n          model: qemu64\n",
            "the node has one emulated processor",
        ),
        Replaced("guest: 4Gi", "guest: 256Mi", "the node has 4 GiB"),
        Replaced(
            "          bootloader:\n            efi:\n"
            "              secureBoot: false # a driver that the guest builds for its GPU is not signed\n",
            "          kernelBoot:\n"
            "            container: {image: localhost/guest:lab, kernelPath: /vmlinuz, initrdPath: /initrd}\n"
            f"            kernelArgs: {KERNEL_ARGUMENTS}\n",
            "the lab's Linux, which boots in a minute",
        ),
        Replaced("quay.io/containerdisks/ubuntu:24.04", "localhost/disk:lab", "the lab reaches no registry"),
        Replaced(
            "            #cloud-config\n            password: gpu\n            chpasswd: {expire: false}\n"
            "            ssh_authorized_keys: []\n",
            "            #!/bin/sh\n"
            "            echo 'cd /sys/bus/pci/devices; grep -H . */vendor' > /listing\n"
            "            nc -ll -p 22 -e sh /listing &\n"
            "            : ssh_authorized_keys: []\n",
            "the lab's Linux runs user data as a script, and has no sshd: who connects gets its PCI devices",
        ),
    ),
}

#: Blocks that say by their exit code what they have found, by a part of their text.
CODES: Mapping[str, frozenset[int]] = {"gpu-plugin doctor": frozenset({0, 3, 4})}

#: What a block has to print, by a part of its text: a regular expression.
SEEN: Mapping[str, str] = {
    # One, while the node has not told the API server of the second yet.
    "-o custom-columns": rf"(?m)^{NODE} +[12] +110$",
    "gpu-plugin doctor": r"0000:01:00\.0",
    "gpu-plugin inventory": r"(?m)^0000:01:00\.0 .* example\.com/pgpu$",
    "> my-vm.yaml": r"(nvidia|example)\.com/pgpu: '1'",
    "kubectl logs": (
        r"(?s)vms_with-a-gpu is running.*"
        r"ua-gpu-gpu: host 0000:(01|41):00\.0 -> guest 0000:01:00\.0.*"
        r"companion: host 0000:(01|41):00\.1 -> guest 0000:01:00\.1"
    ),
    "ctl console": r"GUEST function 0000:01:00\.0 1234:1111",
    "ctl screenshot": "PNG",
    "port-forward": r"0000:01:00\.0/vendor:0x1234",
    "kubectl get service": r"with-a-gpu +NodePort",
    "helm upgrade gpu-plugin deploy/chart": r"vms/with-a-gpu: running",
    "helm rollback": r"vms/with-a-gpu: running",
}


def blocks(page: str) -> tuple[Block, ...]:
    """Return the page's blocks of commands (```sh), in their order."""
    found = []
    heading, script, first = "", None, 0
    for number, line in enumerate(page.splitlines(), start=1):
        if script is not None:
            if line == "```":
                found.append(Block(first, heading, script))
                script = None
            else:
                script += f"{line}\n"
        elif line == "```sh":
            script, first = "", number + 1
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    return tuple(found)


def replaced(text: str, table: tuple[Replaced, ...]) -> str:
    """Return the text as it is in the lab; what stands in the table is at most once in it."""
    for entry in table:
        text = text.replace(entry.old, entry.new)
    return text


def session(script: str, directory: str, programs: str) -> str:
    """Return a script for bash that runs a block as it would be in a terminal that has run the blocks before it: in the
    clone, with what they have exported, and with `programs` before others on the PATH. It ends at the first command
    that fails."""
    state = f"{directory}/.exported"
    return "\n".join([
        "set -euo pipefail",
        f"cd '{directory}'",
        f"[ ! -e '{state}' ] || . '{state}'",
        f"export PATH='{programs}':\"$PATH\"",
        f"trap 'code=$?; export -p > {state}; exit $code' EXIT",
        script,
    ])  # fmt: skip


_SSH = """\
#!/bin/sh
case "$*" in
root@{node}*)
    shift
    said=$(printf '{{ %s\\n}} 2>&1; echo lab-exit-code $?; exit\\n' "$*" | {to_node})
    printf '%s' "${{said%lab-exit-code*}}"
    exit "${{said##*lab-exit-code }}";;
esac
# As with ssh, what it reads does not end: a forwarded connection whose client has nothing more to say is closed soon.
silence=$(mktemp -u); mkfifo "$silence"; exec 3<> "$silence"; rm "$silence"
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    said=$(timeout 60 {to_guest} <&3) && [ -n "$said" ] && {{ echo "$said"; exit 0; }}
    sleep 1
done
echo "ssh: the guest does not answer" >&2
exit 255
"""


def ssh(to_node: str, to_guest: str) -> str:
    """Return an ssh as the page calls it. root@NODE is a root shell on the node: `to_node` is a command that runs what
    it reads. Who else is the guest: `to_guest` is one that prints what the guest says."""
    return _SSH.format(node=NODE, to_node=to_node, to_guest=to_guest)


_KUBECTL = """\
#!/bin/sh
for attempt in 1 2 3 4 5; do
    {kubectl} "$@"
    code=$?
    case "$code $*" in
    "1 "*"gpu-launcher ctl"*) ;;
    *) exit $code;;
    esac
done
exit 1
"""


def kubectl(command: str) -> str:
    """Return a kubectl as the page calls it. `ctl` is asked again where it has failed: an emulated launcher may have no
    time to answer within 20 s."""
    return _KUBECTL.format(kubectl=command)


def write_clone(directory: Path) -> None:
    """Write what a block finds in a clone, with the files of the table replaced."""
    shutil.copytree(ROOT / "deploy", directory / "deploy")
    for name, table in IN_FILES.items():
        path = directory / name
        path.write_text(replaced(path.read_text(), table))
    older_chart(directory / "older-chart", directory / "deploy/chart")
    (directory / ".venv").symlink_to(ROOT / ".venv")


def older_chart(directory: Path, chart: Path = ROOT / "deploy/chart") -> Path:
    """Copy a chart as one of an earlier version."""
    shutil.copytree(chart, directory)
    about = directory / "Chart.yaml"
    about.write_text(re.sub(r"(?m)^(version|appVersion): .*$", rf"\1: {OLDER}", about.read_text()))
    return directory
