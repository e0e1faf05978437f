"""The kubelet's plugin registration API v1, generated from registration.proto by `make protos`."""
