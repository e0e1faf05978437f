"""The guest's vCPUs: which CPUs of the pod they are, its NUMA cells, and how they look to the guest."""
