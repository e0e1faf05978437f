"""Cuts cards into vGPUs and virtual functions: who uses what (`survey`), the difference to the config (`plan`), a step
of it and its undoing (`steps`), all of them (`apply`), and what of it is ours (`made`)."""
