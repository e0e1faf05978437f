"""Cuts cards into vGPUs and virtual functions: who uses what (`survey`), the difference to the config (`plan`), a step
of it and its undoing (`steps`), and all of them (`apply`)."""
