"""The kubelet's APIs as it speaks them: a .proto file each, and what `make protos` generates from it."""
