"""The node's devices by Dynamic Resource Allocation (DRA), beside the device plugin."""
