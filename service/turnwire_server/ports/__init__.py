"""What the runtime needs from the outside: protocols and value types."""
