"""The kinds of devices that a node can have for guests, a file each: what of the node is of the kind and what it could
become, what is wanted of it, as changes (plugin.changes.engine), and how it is given back. `card` is a whole card for
vfio; `nvidia_vgpu`, `mediated` and `virtual_function` are parts of one that is cut; `vgpus` has both kinds of vGPUs. A
partition of GPUs is no file of sysfs: the Fabric Manager changes it, so it is in plugin.fabric."""
