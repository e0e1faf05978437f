"""The sidecar beside KubeVirt's launcher: it gives KubeVirt's domain whole cards, seats, cells and the hole.

annotations and reading read the VMI and the domain, rewriting makes the new domain, answering and serving have the two
gRPC interfaces by which KubeVirt asks (docs/beside-kubevirt.md).
"""
