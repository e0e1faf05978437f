"""kubectl gpuvm map."""

from gpuvm.commands.options import ClusterFlags
from gpuvm.gpu_launcher import map_of
from program.output import print_bytes


def map_cluster(cluster: ClusterFlags) -> None:
    """Print a page for a browser: the whole cluster's nodes and cards, who has which, and what is free."""
    print_bytes(map_of(cluster.kubectl()))
