"""Safety screens."""
