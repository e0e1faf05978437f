"""The guest's PCI Express: where each card is in it, as the host has it, and room for its BARs (docs/guest-pci.md)."""
