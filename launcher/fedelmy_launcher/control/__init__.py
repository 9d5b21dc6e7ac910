"""Run control: check sites, start, follow, cancel, wait for approvals, and show the status."""
