"""fedelmy.v1. Within v1, changes are additive only."""
