"""The node at one moment: `look` reads it, `snapshot` is the value from which all that the plugin says of it follows.

A part that was not looked at is unknown in the snapshot, never absent.
"""
