"""The floor that both programs stand on: PCI devices as values, the one reader of sysfs, and what the two agree on.

Standard library only, so that importing it costs neither program anything.
"""
