"""`gpu-plugin serve`: what tells of changes (`events`, `bus`, `podresources`), the node as it was last seen (`watch`),
what stands behind a resource (`offer`), and the kubelet (`server`, `kubelet`); all of it together is the `daemon`."""
