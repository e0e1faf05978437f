"""Which of the host's CPUs and NUMA nodes serve which of the guest's."""
