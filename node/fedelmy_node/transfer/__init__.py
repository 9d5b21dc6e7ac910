"""Bundle transfers, both ends: outbox and sender, inbox and receiver."""
