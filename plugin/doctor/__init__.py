"""`gpu-plugin doctor`: what is read of the node (`evidence`), and what is found in it (`findings`)."""
