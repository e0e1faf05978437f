"""Instance types and preferences: what a VirtualMachine names in spec.instancetype and spec.preference.

An instance type says how big a guest is and which devices it has; a VM that says it too is refused. A preference says
what the guest likes, and fills in what neither the VM nor its instance type says. Both are applied to the VM as it is
written, before it is read as a manifest: docs/decisions/0028-instance-types-and-input.md says why.

Sources: KubeVirt's API (staging/src/kubevirt.io/api/instancetype/v1beta1/types.go) and what it makes of it
(pkg/instancetype). docs/instancetypes.md is the table of its rules.
"""
