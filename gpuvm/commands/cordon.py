"""kubectl gpuvm cordon and uncordon: a card out of service and in it again, for whoever runs the nodes.

Each is one key of the ConfigMap that every plugin mounts, so the plugins need no right for it
(docs/decisions/0014-health-and-one-look.md).
"""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

import typer

from gpuvm.commands.options import ClusterFlags
from gpuvm.kubectl import PLUGIN_NAMESPACE, Kubectl
from gpuvm.objects import NAME
from gpuvm.pods import look, vms_in
from pci.address import PCIAddress, address_or_none
from pci.cordons import CONFIG_MAP, Cordon, key_of, read_cordon
from program.errors import Refusal, UserError
from program.output import print_foreign

_SOON = "as soon as the node hears of it, in about a minute"

Card = Annotated[
    str, typer.Argument(metavar="NODE/ADDRESS", help="A node's card, as gpu-1/0000:41:00.0.", show_default=False)
]


def cordon(
    card: Card,
    cluster: ClusterFlags,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for whoever asks.")] = "",
) -> None:
    """Take a card out of service: no new VM gets it, and who has it keeps it. -n is the plugin's namespace."""
    kubectl, node, address = _parts(card, cluster)
    key = key_of(node, address)
    if (known := _known(kubectl).get(key)) is not None:
        raise Refusal(card, f"was taken out of service already, {known}", f"`kubectl gpuvm uncordon {card}` ends that")
    if kubectl.named("node", node) is None:
        raise Refusal(f"node {node}", "is not there", "`kubectl get nodes` lists them")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    value = Cordon(by=kubectl.user(), since=now, why=reason)
    kubectl.set_data(CONFIG_MAP, key, json.dumps(value.as_json()))
    print_foreign(f"{node}/{address}: is out of service {_SOON}; {_holders(kubectl, node, address)}\n")


def uncordon(card: Card, cluster: ClusterFlags) -> None:
    """Have a card in service again. -n is the plugin's namespace."""
    kubectl, node, address = _parts(card, cluster)
    key = key_of(node, address)
    if (known := _known(kubectl).get(key)) is None:
        raise Refusal(card, "is not out of service", "`kubectl gpuvm map` shows which are")
    kubectl.set_data(CONFIG_MAP, key, None)
    print_foreign(f"{node}/{address}: is in service again {_SOON}; it was taken out of service {known}\n")


def _parts(card: str, cluster: ClusterFlags) -> tuple[Kubectl, str, PCIAddress]:
    node, _, text = card.rpartition("/")
    address = address_or_none(text)
    if not re.fullmatch(NAME, node) or address is None:
        raise UserError(card, "is no card of a node", "name one as NODE/ADDRESS, like gpu-1/0000:41:00.0")
    return replace(cluster, namespace=cluster.namespace or PLUGIN_NAMESPACE).kubectl(), node, address


def _known(kubectl: Kubectl) -> dict[str, Cordon]:
    """Return the cards that are out of service, by key. Refusal without the ConfigMap."""
    if (config_map := kubectl.config_map(CONFIG_MAP)) is None:
        fix = "apply deploy/plugin of this version, or name its namespace with -n"
        raise Refusal(f"ConfigMap {CONFIG_MAP}", "is not there", fix)
    return {key: read_cordon(text) for key, text in config_map.data.items()}


def _holders(kubectl: Kubectl, node: str, address: PCIAddress) -> str:
    """Return who has a card now, as far as the API server knows: by DRA its claims, and by a device plugin what the
    kubelet tells of pods."""
    holders = []
    try:
        vms = vms_in(look(kubectl, everywhere=True))
        holders += [f"pod {vm.namespace}/{vm.name}" for vm in vms if vm.node == node and str(address) in vm.devices]
        holders += [str(claim) for claim in kubectl.all_claims() if claim.has(node, address)]
    except Refusal as refusal:
        return f"who has it is not known here ({refusal.problem.wrong}): the node's page says it"
    if not holders:
        return "no pod is known to have it: the node's page says what its kubelet knows"
    return f"{', '.join(holders)} keeps it"
