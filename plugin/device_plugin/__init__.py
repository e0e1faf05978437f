"""`gpu-plugin serve`, the device plugin: the devices of a resource (`offer`), the kubelet's API for a resource
(`server`), the registration of all resources (`kubelet`), metrics and health (`monitoring`), and the `daemon` that runs
these."""
