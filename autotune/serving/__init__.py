"""From a problem to a kernel, on any target: look-up, fitting, prediction, loading."""
