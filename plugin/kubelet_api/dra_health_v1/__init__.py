"""The kubelet's API v1 for the health of DRA devices, generated from health.proto by `make protos`."""
