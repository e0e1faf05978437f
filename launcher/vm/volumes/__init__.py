"""What is behind disks: volumes of the pod, images, and files that are made of them."""
