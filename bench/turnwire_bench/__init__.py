"""The transport benchmark: what a turn costs on each wire."""
