"""Response stores."""
