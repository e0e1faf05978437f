"""All stages from a manifest, its pod and a place to the domain that is started there, with all findings."""
