"""Compile a federation into a plan and signed slices; topologies and discovery."""
