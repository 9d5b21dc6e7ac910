"""Operating a node: health, metrics, doctor, backup."""
