"""Reading what people write: TOML files and plans become validated dataclasses here and nowhere else."""
