"""What a site keeps on disk: the state directory, its lock, the journal and the audit log."""
