"""The kubelet's device plugin API, v1beta1. `make protos` generates the modules from deviceplugin.proto."""
