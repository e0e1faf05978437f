"""What is spoken on the control socket: a .proto file each, and what `make protos` generates from it."""
