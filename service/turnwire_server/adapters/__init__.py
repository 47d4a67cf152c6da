"""Implementations of the ports; one optional dependency each."""
