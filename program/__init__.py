"""What both programs are as programs: problems and errors, exit codes, the command line, YAML, output.

It knows nothing of GPUs. Importing program.problem and program.errors costs nothing.
"""
