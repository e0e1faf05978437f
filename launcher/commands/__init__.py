"""gpu-launcher's commands, a module each: flags and files to the stages of the launcher, and the answer to the user."""
