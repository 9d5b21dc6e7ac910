"""The operator's side: federation files, plans, run control, simulation, demo. It sees progress, never weights."""
