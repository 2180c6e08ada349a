"""GPUs of this host as programs use them: matrices, memory, streams, events, copies, products."""
