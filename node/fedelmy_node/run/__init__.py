"""The daemon of a site: it decides what happens next, owns the trainers, and hands bundles over."""
