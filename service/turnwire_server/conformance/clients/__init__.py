"""The suite's own clients: raw, patient with faults, and judged event by event."""
