"""The forms that fields of all kinds are written in: objects, texts and numbers, quantities."""
