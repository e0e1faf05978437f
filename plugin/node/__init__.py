"""The node at one moment: `look` reads it, `snapshot` is the value from which everything follows that the plugin says
about it.

A part that was not read is unknown in the snapshot, never absent.
"""
