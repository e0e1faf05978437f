"""What keeps a guest from its host: confidential computing."""
