"""The target `hybrid`: emitted programs whose host threads drive the streams of GPUs."""
