"""The manifest: kubevirt.io/v1's VirtualMachineInstance, field by field, one module a family.

Field names, defaults and meaning are KubeVirt's (staging/src/kubevirt.io/api/core/v1/schema.go). Every field of its
VirtualMachineInstanceSpec is here: converted, refused with the reason and an alternative (objects.Refused), or ignored
on purpose (objects.Ignored). docs/manifest.md is the table of them. Any field that KubeVirt lacks is refused by its
path: a misspelt `gpu:` must not yield a guest without its GPU.
"""
