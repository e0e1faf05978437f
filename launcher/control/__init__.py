"""The control socket: the calls about the VM of this process, who may make them, and their messages."""
