import re
from pathlib import Path

import pytest

from pci.resource import NodeDevice
from plugin.cards.config import Config, Groups, Rule, Serve
from plugin.cards.preference import Policy
from plugin.cards.vgpu_rules import Quota, VGPURule
from plugin.config_file import read_config, schema, shadowed_in
from program.errors import UserError


def test_every_key_of_the_file_is_a_value_of_the_config(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        """
offer:
- {device: "10DE:1f08", driver: vfio-pci, resource: nvidia.com/pgpu}
- {vendor: "15b3", pci_class: "0200", prefix: example.com}
- {address: [0000:41:00.0, "0000:61:00.0"], withhold: true}
- {subsystem: "1462:3756", mdev_type: GRID T4-1Q, resource: example.com/quarter, serve: device-plugin}
- {device: "10de:2204", prefix: nvidia.com, team: ml}
groups: together
prefer: {nvidia.com/pgpu: spread}
node_devices: {kvm: 110, vhost-net: 10}
serve: dra
vgpus:
- {device: "10DE:26b9", types: {L40S-24Q: 2}}
- {address: [0000:03:00.0], functions: 4, quota: {vram_quota: 2147483648}}
"""
    )
    assert read_config(path) == Config(
        offer=(
            Rule(device="10de:1f08", driver="vfio-pci", resource="nvidia.com/pgpu"),
            Rule(vendor="15b3", pci_class="0200", prefix="example.com"),
            Rule(address=("0000:41:00.0", "0000:61:00.0"), withhold=True),
            Rule(
                subsystem="1462:3756", mdev_type="GRID T4-1Q", resource="example.com/quarter", serve=Serve.DEVICE_PLUGIN
            ),
            Rule(device="10de:2204", prefix="nvidia.com", team="ml"),
        ),
        groups=Groups.TOGETHER,
        prefer={"nvidia.com/pgpu": Policy.SPREAD},
        node_devices={NodeDevice.KVM: 110, NodeDevice.VHOST_NET: 10},
        serve=Serve.DRA,
        vgpus=(
            VGPURule(device="10DE:26b9", types={"L40S-24Q": 2}),
            VGPURule(address=("0000:03:00.0",), functions=4, quota={Quota.VRAM: 2147483648}),
        ),
    )


def test_an_empty_file_is_one_that_is_being_written(tmp_path: Path) -> None:
    """To offer every GPU for the moment would hand out those that the file withholds."""
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UserError, match=r"is empty; a config that asks for nothing is a comment, or \{\}"):
        read_config(tmp_path / "config.yaml")


def test_an_address_is_taken_as_nvidia_smi_writes_it() -> None:
    assert Rule(address="00000000:E1:00.0", withhold=True) == Rule(address="0000:e1:00.0", withhold=True)


def test_the_schema_has_every_key_and_takes_no_other() -> None:
    found = schema()
    keys = {
        "offer",
        "groups",
        "deadly_resets",
        "prefer",
        "node_devices",
        "serve",
        "bind",
        "whole",
        "fabric",
        "vgpus",
    }
    assert set(found["properties"]) == keys
    assert found["additionalProperties"] is False
    assert found["$defs"]["Rule"]["additionalProperties"] is False
    assert {"vendor", "device", "subsystem", "pci_class", "address", "driver"} <= set(
        found["$defs"]["Rule"]["properties"]
    )


def test_an_empty_file_asks_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("# nothing yet\n")
    assert read_config(path) == Config()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("offer: [", "is not YAML"),
        ("[]", "found []; expected a mapping: gpu-plugin config schema prints"),
        ("deadly_resets: hide", "deadly_resets: found 'hide'; expected one of offer, withhold"),
        (
            "offer: [{vendor: '10de', prefix: a.b, reset_method: slot}]",
            "offer.0: found reset_method 'slot'; expected any of device_specific, acpi, flr",
        ),
        (
            "offer: [{vendor: '10de', prefix: a.b, d3cold_allowed: never}]",
            "offer.0.d3cold_allowed: found 'never'; expected",
        ),
        ("ofer: []", "ofer: is no word of the config; did you mean offer?"),
        ("x: 1", "x: is no word of the config; expected one of offer, groups, deadly_resets, prefer, node_devices"),
        ("groups: togeter", "groups: found 'togeter'; did you mean together?"),
        ("node_devices: {vhost_net: 1}", "node_devices.vhost_net: is no word of the config; did you mean vhost-net?"),
        ("offer: [{vendr: '10de', withhold: true}]", "offer.0.vendr: is no word of the config; did you mean vendor?"),
        (
            "offer: [{pool: a/b, address: '0000:41:00.0'}]",
            "offer.0.pool: is no word of the config; expected one of ",
        ),
        ("offer: [{device: '1234:1111'}]", "offer.0: has none of resource, prefix and withhold; expected one"),
        ("offer: [{device: '1234:1111', resource: a/b, withhold: true}]", "offer.0: has resource and withhold of"),
        ("vgpus: [{vendr: '10de'}]", "vgpus.0.vendr: is no word of the config; did you mean vendor?"),
        ("vgpus: [{types: {A: 1}}]", "vgpus.0: has no selector, to say which cards; expected one of vendor"),
        ("vgpus: [{vendor: '10de'}]", "vgpus.0: has none of types and functions; expected one of types"),
        ("vgpus: [{vendor: '10de', types: {A: 1}, functions: 2}]", "vgpus.0: has both of types and functions"),
        ("vgpus: [{vendor: '10de', types: {A: 0}}]", "vgpus.0: types: A: found 0; expected how many, 1 to 4096"),
        ("vgpus: [{vendor: '10de', types: {'': 1}}]", "vgpus.0: types: found ''; expected the name of a type"),
        ("vgpus: [{vendor: '10de', types: {A: 1, 'NVIDIA A': 1}}]", "vgpus.0: types: 'A' stands twice, with its"),
        ("vgpus: [{vendor: '8086', functions: 2, mixed_sizes: true}]", "vgpus.0: has mixed_sizes beside functions"),
        (
            "vgpus: [{vendor: '10de', types: {A-1Q: 1}, when: claimed}]",
            "vgpus.0.when: found claimed, and serve is device-plugin; say serve: dra",
        ),
        ("vgpus: [{vendor: '10de', functions: 1, when: claimed}]", "vgpus.0: has when: claimed beside functions"),
        ("vgpus: [{vendor: '10de', types: {A: 1}, when: claimed}]", "vgpus.0: types: A does not tell its memory"),
        (
            "vgpus: [{vendor: '10de', types: {A-1-5C: 1, A-4Q: 1}, when: claimed}]",
            "vgpus.0: types: A-1-5C is of a GPU instance, and A-4Q of a card without MIG mode; expected two rules",
        ),
        (
            "vgpus: [{vendor: '10de', types: {A-1-5C: 1, A-1-10Q: 1}, when: claimed}]",
            "vgpus.0: types: A-1-5C and A-1-10Q may be of the same GPU instances, and sysfs does not tell it; name one",
        ),
        (
            "vgpus: [{vendor: '10de', types: {A-1-5C: 1}, mixed_sizes: true, when: claimed}]",
            "vgpus.0: has mixed_sizes beside types of GPU instances; leave it out",
        ),
        (
            "vgpus: [{vendor: '10de', types: {A B-1Q: 1, A-B-1Q: 1}, when: claimed}]",
            "vgpus.0: types: two are 'a-b-1q' in the names of devices; leave out one",
        ),
        (
            "vgpus: [{vendor: '10de', types: {A-1Q: 257}, when: claimed}]",
            "vgpus.0: types: found 257 with when: claimed",
        ),
        (
            "vgpus: [{vendor: '10de', types: {A-1Q: 64, A-2Q: 62, A-3Q: 1}, when: claimed}]",
            "vgpus.0: types: to keep the sizes apart takes 66 counters of Kubernetes for each card; name fewer sizes",
        ),
        ("vgpus: [{vendor: '8086', functions: 9999}]", "vgpus.0: functions: found 9999; expected how many"),
        ("vgpus: [{vendor: '10de', types: {A: 1}, quota: {vram_quota: 1}}]", "vgpus.0: has quota beside types"),
        (
            "vgpus: [{vendor: '8086', functions: 1, quota: {vram: 1}}]",
            "vgpus.0.quota.vram: is no word of the config; expected one of vram_",
        ),
        ("vgpus: [{vendor: '8086', functions: 1, quota: {vram_quota: -1}}]", "vgpus.0: quota: vram_quota: found -1"),
        ("vgpus: [{vendor: nvidia, functions: 1}]", "vgpus.0: found vendor 'nvidia'; expected four hexadecimal"),
        ("vgpus: [{address: '41:00.0', functions: 1}]", "vgpus.0: found address '41:00.0'; expected a PCI address"),
        ("offer: [{resource: a/b}]", "offer.0: has no selector, to say what is offered; expected one of vendor"),
        (
            "offer: [{resource: a/b, device: 'bochs'}]",
            "offer.0: found device 'bochs'; expected vendor:device in hexadecimal",
        ),
        (
            "offer: [{resource: a/b, vendor: nvidia}]",
            "offer.0: found vendor 'nvidia'; expected four hexadecimal digits",
        ),
        (
            "offer: [{resource: a/b, pci_class: '3'}]",
            "offer.0: found pci_class '3'; expected 2, 4 or 6 hexadecimal digits",
        ),
        ("offer: [{resource: a/b, address: '41:00.0'}]", "offer.0: found address '41:00.0'; expected a PCI address"),
        (
            "offer: [{resource: a/b, mdev_type: T4, address: '0000:41:00.0'}]",
            "offer.0: mdev_type is beside address or vgpu_type; it goes with",
        ),
        (
            "offer: [{resource: bochs, device: '1234:1111'}]",
            "offer.0: 'bochs' is not an extended resource name",
        ),
        (
            "fabric: {manager: here}",
            "fabric: found manager 'here'; expected address:port, the path of a unix socket, or",
        ),
        ("fabric: {manager: 'vsock:x:1'}", "fabric: found manager 'vsock:x:1'; expected address:port"),
        ("fabric: {library: ''}", "fabric: found library ''; expected a name or a path, like libnvfm.so.1"),
        ("fabric: {modules: {'0f:00': 1}}", "fabric: modules: found '0f:00'; expected a PCI address"),
        (
            "fabric: {modules: {'0000:0f:00.0': 99}}",
            "fabric: modules: 0000:0f:00.0: found 99; expected the GPU's module ID",
        ),
        (
            "fabric: {modules: {'0000:0f:00.0': 1, '0000:10:00.0': 1}}",
            "fabric: modules: 0000:0f:00.0 and 0000:10:00.0 are both module 1; expected a module ID of its own",
        ),
        ("fabric: {version: 580.126}", "fabric.version: found 580.126; expected text, in quotes"),
        (
            "fabric: {version: '580'}",
            "fabric: found version '580'; expected the manager's, in quotes, like '580.126.09'",
        ),
        ("fabric: {mode: 1}", "fabric.mode: is no word of the config; expected one of manager, "),
        ("whole: [hgx]", "whole: 'hgx' is not an extended resource name; expected prefix/name"),
        ("offer: [{prefix: kubernetes.io, device: '1234:1111'}]", "offer.0: 'kubernetes.io' is not a prefix"),
        (
            "offer: [{resource: a/b, address: {domain: 0}}]",
            "offer.0.address: found {'domain': 0}; expected text, in quotes",
        ),
        ("offer: []\noffer: []", "is not YAML: the key 'offer' is there twice"),
        ("offer: 2001-99-99", "offer: found '2001-99-99'; expected a list"),
        ("offer: !!bool maybe", "is not YAML: "),
        ("offer: " + "[" * 3000, "is not YAML: "),
        ("offer: [{resource: a/b, device: 1234}]", "offer.0.device: found 1234; expected text, in quotes"),
        (f"offer: [{{resource: a/b, vendor: 0x{'f' * 5000}}}]", "offer.0.vendor: found a huge number; expected text"),
        (
            "offer: [{prefix: a.b, vendor: '10de', team: ml}]",
            "offer.0.team: found ml, and the devices are served by device plugin; say serve: dra; or give",
        ),
        (
            "{serve: dra, offer: [{prefix: a.b, vendor: '10de', team: ml, serve: device-plugin}]}",
            "offer.0.team: found ml, and the devices are served by device plugin",
        ),
        (
            "{serve: dra, offer: [{prefix: a.b, vendor: '10de', team: m/l}]}",
            "offer.0: found team 'm/l'; expected the value",
        ),
        (
            "{serve: dra, offer: [{withhold: true, vendor: '10de', team: ml}]}",
            "offer.0: has team beside withhold; what is withheld is nobody's",
        ),
        ("groups: split", "groups: found 'split'; expected one of withhold, together"),
        ("prefer: {pgpu: pack}", "prefer: 'pgpu' is not an extended resource name"),
        ("prefer: {a.b/pgpu: tight}", "prefer.a.b/pgpu: found 'tight'; expected one of pack, spread"),
        ("bind: when-claimed", "bind: found when-claimed, and no device is served by DRA; say serve: dra"),
        ("bind: later", "bind: found 'later'; expected one of beforehand, when-claimed"),
        (
            "{serve: dra, bind: when-claimed, offer: [{driver: nvidia, withhold: true}]}",
            "offer.0.driver: is beside bind: when-claimed; leave it out: a card has another driver while",
        ),
        ("node_devices: {kvm: 0}", "node_devices: kvm: found 0; expected how many containers may share it"),
        (
            "node_devices: {nvidia: 1}",
            "node_devices.nvidia: is no word of the config; expected one of kvm, tun, vhost-",
        ),
    ],
)
def test_nonsense_is_refused_by_its_path(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_config(path)
    assert re.sub(r"\.yaml(:\d+)+: ", ".yaml: ", str(error.value)).startswith(f"{path}: {problem}")
    assert "\n" not in str(error.value)


RULE = 'offer:\n- {vendor: "10de", prefix: a.com}\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        # offer: Input should be a valid tuple; gpu-plugin config schema prints all that a config may say
        (
            "# one rule\noffer:\n  device: '10de:1f08'\n  withhold: true\n",
            ":2: offer: found {'device': '10de:1f08', 'withhold': True}; expected a list",
        ),
        ("offer:\n", ":1: offer: has no value; expected a list"),
        # offer.1: Input should be a dictionary or an instance of Rule; gpu-plugin config schema prints all that ...
        (f"{RULE}- '10de:1f08'\n", ":3: offer.1: found '10de:1f08'; expected a mapping"),
        # offer.0.withhold: Input should be a valid boolean, unable to interpret input; gpu-plugin config ...
        (
            'offer:\n- address: "0000:01:00.0"\n  withhold: maybe\n',
            ":3: offer.0.withhold: found 'maybe'; expected true or false",
        ),
        # node_devices.kvm: Input should be a valid integer, unable to parse string as an integer; gpu-plugin config ...
        ("node_devices:\n  tun: 1\n  kvm: x\n", ":3: node_devices.kvm: found 'x'; expected a number"),
        # the file: whole: 'hgx' is not an extended resource name; expected prefix/name
        (f"{RULE}whole: [hgx]\n", ":3: whole: 'hgx' is not an extended resource name; expected prefix/name"),
        # is not YAML: line 2, column 1: while scanning for the next token, found character that cannot start any token
        ("offer:\n\t- x", ":2:1: is not YAML: a tab is here, and YAML is indented with spaces; write spaces"),
        # cannot be read: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte
        ("\udcff\udcfe", ":1: is text in UTF-16; save it as UTF-8"),
    ],
)
def test_the_whole_line_has_the_files_line_and_the_words_of_users(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError) as error:
        read_config(path)
    assert str(error.value) == f"{path}{line}"


@pytest.mark.parametrize(
    ("first", "second", "shadowed"),
    [
        ("vendor: '10de'", "device: '10de:1f08'", True),
        ("vendor: '10de'", "vendor: '10de', driver: nvidia", True),
        ("pci_class: '03'", "pci_class: ['0300', '0302'], vendor: '10de'", True),
        ("device: ['10DE:1f08', '10de:1f09']", "device: '10de:1f08', subsystem: '1462:3756'", True),
        ("mdev_type: [A, B]", "mdev_type: A", True),
        ("device: '10de:1f08'", "vendor: '10de'", False),
        ("vendor: '1002'", "device: '10de:1f08'", False),
        ("vendor: '10de', driver: nvidia", "device: '10de:1f08'", False),
        ("pci_class: '0300'", "pci_class: '03'", False),
        ("vendor: '10de'", "mdev_type: A, vendor: '10de'", False),
        ("device: '10de:1f08'", "address: '0000:41:00.0'", False),
    ],
)
def test_a_rule_that_an_earlier_one_leaves_nothing_to_is_said(
    tmp_path: Path, first: str, second: str, shadowed: bool
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"offer:\n- {{{first}, prefix: a.com}}\n\n- {{{second}, withhold: true}}\n")
    said = [str(problem) for problem in shadowed_in(path, read_config(path))]
    wrong = "offer.1: never counts, as offer.0 fits each device that it fits, and comes first"
    assert said == ([f"{path}:4: {wrong}; write it before offer.0, or leave it out"] if shadowed else [])
