"""What tells that a node has changed, and the node as it was last seen, for every server that stands on it.

`listening` opens what tells of changes (`events`), `watch` has the latest snapshot, `podresources` and `bus` what sysfs
does not tell, and `keeping` looks whenever a change was told, and from time to time. A server waits for the watch's
next change. `sockets` and `registry` are what servers of the kubelet have in common, `counters` what they count.
"""
