"""gpu-launcher, the program in the VM's pod and the offline CLI: a KubeVirt VM in, a running libvirt domain out."""
