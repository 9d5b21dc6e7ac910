"""Evaluate and use a model: scores, features, inference."""
