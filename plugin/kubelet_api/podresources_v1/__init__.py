"""The kubelet's pod resources API v1, generated from podresources.proto by `make protos`."""
