"""The one reader of sysfs for both programs.

Each module takes the directory that stands for /sys, and returns the frozen values of pci.host and pci.processors.
Nothing is decided here.
"""
