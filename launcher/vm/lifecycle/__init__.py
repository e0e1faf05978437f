"""When the VM starts again, when it has to be gone, and what the kubelet asks of it."""
