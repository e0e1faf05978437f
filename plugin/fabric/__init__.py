"""Partitions of GPUs by NVLink: which sets of cards a guest may have, and who has which, by NVIDIA's Fabric Manager on
machines with NVSwitches in its shared mode. docs/fabric.md is for their operators."""
