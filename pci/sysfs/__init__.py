"""The one reader of sysfs: everything that either program reads there, it reads through these modules.

Each takes the directory that stands for /sys, and returns the frozen values of pci.host, pci.platform and
pci.processors. Nothing is decided here.
"""
