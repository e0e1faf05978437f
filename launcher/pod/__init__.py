"""The Pod that runs a VM, and what it needs beside it: from a manifest to Kubernetes' objects, values to values."""
