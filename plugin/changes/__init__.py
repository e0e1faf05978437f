"""What is asked before anything of the node is changed: who was given a device (`users`), and what the node's
`processes` have open or mounted of it (`uses`); what `engine` changes then, and the `journal` of it."""
