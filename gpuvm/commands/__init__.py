"""The verbs of kubectl-gpuvm: flags in, calls of kubectl out."""
