"""`gpu-plugin serve`, the device plugin: what stands behind a resource (`offer`), the kubelet's API for one (`server`),
registration of all (`kubelet`), metrics and health (`monitoring`); all of it together is the `daemon`."""
