"""The kinds of devices that a node can have for guests, a file each: what of the node is of the kind, what is wanted of
it, as changes (plugin.changes.engine), and how it is given back. A whole `card` is given to vfio: its vfio driver
(`modalias`), what is read of it (`survey`), why not (`hindrances`), and the writes that move it (`drivers`)."""
