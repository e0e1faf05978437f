"""What both programs have in common as programs: errors, exit codes, the command line, child processes, YAML, output.

Nothing here knows of GPUs. Importing program.problem and program.errors costs nothing.
"""
