"""Giving cards to vfio, and back: who uses them (`processes`, `uses`), which driver (`modalias`), what they had before
(`former`), which writes (`plan`), and doing it (`rebinding`)."""
