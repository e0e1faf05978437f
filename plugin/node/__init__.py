"""What is true of the node: one look makes one value, and all that the plugin says of the node follows from that value.

`look` takes the look, `snapshot` is the value. A part that was not looked at is unknown in it, never absent.
"""
