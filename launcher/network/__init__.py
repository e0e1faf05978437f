"""What the guest's network cards are connected to, and what passt is called with: from the manifest to values."""
