"""Strict decoding of TOML files, JSON and plans into validated dataclasses."""
