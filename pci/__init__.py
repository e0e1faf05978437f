"""The floor both programs stand on: what the plugin and the launcher must agree on, and the one reader of sysfs.

Standard library only, so that importing it costs neither program anything.
"""
