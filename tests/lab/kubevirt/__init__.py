"""KubeVirt itself in the lab: its unmodified programs, of the directory that KUBEVIRT names (docs/testing.md).

cluster brings it up with what objects makes of the directory's objects, vms is what is created there, older_plugin a
device plugin of others. root/ is in the image of its pods (build.kubevirt).
"""
