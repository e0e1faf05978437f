"""The sidecar beside KubeVirt's launcher: it gives KubeVirt's domain whole cards, seats, cells and the hole.

kubevirt_domain reads the VMI and the domain, rewrite makes the new domain with edits, calls and sidecar have the two
gRPC interfaces by which KubeVirt asks (docs/beside-kubevirt.md).
"""
