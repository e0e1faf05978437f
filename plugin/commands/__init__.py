"""gpu-plugin's commands, a module each: flags and files to the stages of the plugin, and the answer to the user."""
