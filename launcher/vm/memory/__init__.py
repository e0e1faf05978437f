"""The guest's memory: how much, in which pages, and what holds it to its limits."""
