"""The federation's certificate authority."""
