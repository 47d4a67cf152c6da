"""The imperative shell: connections, turns, outboxes."""
