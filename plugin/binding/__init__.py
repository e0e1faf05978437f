"""Giving cards to vfio, and back: who uses them (`processes`, `uses`), which driver (`modalias`), what they had before
(`former_drivers`), which writes (`plan`), and doing it (`rebind`)."""
