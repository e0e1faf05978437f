"""What the machine and the hypervisor offer to the guest, and its clock."""
