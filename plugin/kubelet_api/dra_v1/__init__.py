"""The kubelet's DRA API v1, generated from dra.proto by `make protos`."""
