"""The device of a site: trainers as child processes, and the queue for them."""
