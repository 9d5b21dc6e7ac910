"""The training side: what runs in the trainer process and in simulation. The only place that imports torch."""
