"""How a run stands, for whoever watches: sentences and small pictures of its progress, and where they are shown."""
