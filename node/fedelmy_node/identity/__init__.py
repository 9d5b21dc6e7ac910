"""Identities of sites and operators: keys, certificates, trust, signatures."""
