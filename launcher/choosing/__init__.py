"""Which cards a VM wants, and which nodes and cards could be its own."""
