"""Gives cards to vfio, and back: their vfio driver (`modalias`), what is read before a change (`survey`), why not
(`hindrances`), the writes (`moves`), whose they are (`plan`), and doing these (`rebind`)."""
