"""Run a plan in one process, and partition one data set among sites."""
