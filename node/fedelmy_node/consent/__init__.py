"""What a site agrees to: rules, approval, the plan in plain words, disclosure."""
