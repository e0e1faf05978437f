"""Confidential computing: keeps a guest from its host."""
