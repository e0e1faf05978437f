"""The node at one moment: `look` reads it, `snapshot` is the value on which all statements of the plugin rest.

A part that was not read is unknown in the snapshot, never absent.
"""
