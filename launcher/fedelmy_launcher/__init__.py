"""The operator's side: plans, run control, simulation, demo. It sees progress, never weights."""
