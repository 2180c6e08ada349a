"""Where kernels run: a folder for each target, with all that is particular to it."""
