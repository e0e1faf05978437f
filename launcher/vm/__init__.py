"""The things of a VM, a folder for each; and the VM as a whole.

In each folder the same names have the same roles: `manifest`, the fields, with their checks; `guest`, what is decided,
as values; `facts`, what is read of the pod; `xml`, the elements; `files`, what is needed on disk; `pod`, what the VM's
pod needs for it; `checks`, what keeps a VM from starting. The modules beside the folders have the same roles for the
whole VM, `spec` above all manifests and `domain` above all elements, or are what several things share.
"""
