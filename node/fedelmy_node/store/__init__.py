"""What a site keeps on its own disk: the state directory, its lock, and the journal."""
