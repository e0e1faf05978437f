"""The pod's side: one VM from its XML to its end, in processes that leave nothing behind."""
