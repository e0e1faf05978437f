"""`kubectl gpuvm`: the VMs of gpu-launcher's pods, over the user's own kubectl.

It has no Kubernetes client of its own, and imports neither of the other two programs: it calls kubectl and gpu-launcher
(docs/decisions/0021-command-lines-and-pages.md).
"""
