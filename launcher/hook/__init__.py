"""Beside KubeVirt: the sidecar that gives the domain that KubeVirt has made its whole cards, seats, cells and hole.

annotations and reading say what is asked and what there is, rewriting makes the new domain of it, answering and serving
are the two gRPC interfaces by which KubeVirt asks (docs/beside-kubevirt.md).
"""
