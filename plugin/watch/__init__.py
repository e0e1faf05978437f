"""The node as it was last seen, for every server, and the sources of its changes.

`listeners` opens the sources (`events`), `watch` has the latest snapshot, `podresources` asks the kubelet which pods
have which devices, and `keeper` looks at each event and from time to time. A server waits for the watch's next change.
`sockets` and `registry` are common to the servers of the kubelet.
"""
