"""The serial console, the screen, and which of the cards is a display."""
