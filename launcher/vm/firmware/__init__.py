"""BIOS and EFI, a kernel and its arguments, and what firmware tells the guest."""
