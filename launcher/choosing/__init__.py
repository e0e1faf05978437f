"""Which cards a VM wants, and which nodes and cards it could get."""
