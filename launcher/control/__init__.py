"""The control socket: what may be asked of the VM of this process, by whom, and how it is said on the wire."""
