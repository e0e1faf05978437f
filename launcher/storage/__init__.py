"""The files that a guest's disks and firmware are in: what is there, and what is made before the domain starts."""
