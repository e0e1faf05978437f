"""Instance types and preferences: the objects that a VirtualMachine names in spec.instancetype and spec.preference.

An instance type sets a guest's size and devices; a VM that sets them too is refused. A preference has defaults for the
guest, and fills in what neither the VM nor its instance type sets. Both are applied to the VM as it is written, before
it is read as a manifest: docs/decisions/0003-the-manifest.md says why.

Sources: KubeVirt's API (staging/src/kubevirt.io/api/instancetype/v1beta1/types.go) and how KubeVirt applies it
(pkg/instancetype). docs/instancetypes.md is the table of its rules.
"""
