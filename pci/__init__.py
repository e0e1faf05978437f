"""The base of both programs: PCI devices as values, the one reader of sysfs, and the programs' contract.

It needs the standard library alone, so that importing it costs neither program anything.
"""
