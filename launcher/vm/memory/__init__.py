"""The guest's memory: its size, its pages, and its limits."""
