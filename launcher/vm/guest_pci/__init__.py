"""Where each card is in the guest: seats, ports and expanders, room for BARs, and the picture of them."""
