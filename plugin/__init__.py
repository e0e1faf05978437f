"""gpu-plugin, the DaemonSet: finds a node's passthrough GPUs and offers them to the kubelet."""
