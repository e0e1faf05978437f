"""gpu-launcher map."""

from datetime import UTC, datetime

from launcher.choosing.cluster_files import read_cluster
from launcher.choosing.map import map_of
from launcher.commands.options import ClusterFile
from program.errors import UserError
from program.output import print_text


def map_cluster(cluster: ClusterFile) -> None:
    """Print a page for a browser: the cluster's nodes and cards, who has which, and what is free."""
    snapshot = read_cluster(cluster)
    if not snapshot.nodes:
        wrong = "neither a Node nor a device of one is among the objects"
        raise UserError(f"--cluster {cluster}", wrong, "kubectl get nodes,pods -A -o json")
    print_text(map_of(snapshot, datetime.now(UTC)).html)
