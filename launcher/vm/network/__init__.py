"""The guest's network cards, and what each is attached to."""
