"""Gives cards to vfio, and back: their users (`processes`, `uses`), their vfio driver (`modalias`), their former
drivers (`former`), the writes (`plan`), and doing these (`rebinding`)."""
