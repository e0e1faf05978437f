"""The way from a manifest, its pod and a place to what is started there, with everything that was found."""
