"""The sources of disks: volumes of the pod, images, and files that are made from them."""
