"""Bundles as the daemon sees them: files with a header that is checked without torch."""
