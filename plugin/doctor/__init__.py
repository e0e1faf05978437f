"""`gpu-plugin doctor`: what is to be said of a snapshot, of the `node` and of its `devices`."""
