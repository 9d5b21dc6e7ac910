"""A run as a graph of sites: which shape it has, and where everything goes in a picture of it."""
