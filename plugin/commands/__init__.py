"""gpu-plugin's commands, a module each: flags and files to the stages of the plugin, and what is printed of them."""
