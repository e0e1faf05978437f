"""What KubeVirt's launcher asks its sidecars: a .proto file for each version, and what `make protos` makes of it."""
