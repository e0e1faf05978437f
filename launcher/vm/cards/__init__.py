"""The host's devices that the guest gets: whole cards, virtual functions, mediated and USB devices."""
