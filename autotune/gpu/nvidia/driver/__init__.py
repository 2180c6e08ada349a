"""NVIDIA's driver: one interface, answered by PyCUDA or by the driver's own bindings."""
