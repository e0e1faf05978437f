"""Gives cards to vfio, and back: their users (`processes`, `uses`), their vfio driver (`modalias`), their former
drivers (`former_drivers`), the writes (`plan`), and doing these (`rebind`)."""
