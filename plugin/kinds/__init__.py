"""The kinds of devices that a node can have for guests, a file each: the devices of the kind, what they can become, and
the changes (plugin.changes.engine) that make them and give them back. `card` is a whole card for vfio; `nvidia_vgpu`,
`mediated` and `virtual_function` are parts of a cut card; `vgpus` has both kinds of vGPUs. A partition of GPUs is no
file of sysfs: the Fabric Manager changes it, so it is in plugin.fabric."""
