"""What keeps a VM from starting in this pod, or from doing well in it: a module for each kind of thing.

Each reads something of the pod into values, and makes findings of these. Nothing is started to find out.
"""
