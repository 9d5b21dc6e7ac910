"""Advise on strategy and settings, from the sites' class counts and the rows of docs/results.md."""
