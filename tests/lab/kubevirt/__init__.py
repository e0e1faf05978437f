"""KubeVirt itself in the lab: its unmodified programs, of the directory that KUBEVIRT names (docs/testing.md).

images makes what its pods run in, cluster brings it up, vms is what is created there.
"""
