"""From a manifest, its pod and the place where it is to start to what is started there, and all that was found."""
