"""Training, in the trainer process and in simulation; the only package that imports torch."""
