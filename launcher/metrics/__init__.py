"""The metrics of a VM's pod, for Prometheus."""
