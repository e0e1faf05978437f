"""Changes of the node. Before each, `users` says who was given a device, and `uses` what the node's `processes` have
open or mounted of it. `engine` does the changes, and keeps a `journal` of them."""
