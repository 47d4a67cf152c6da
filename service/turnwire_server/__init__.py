"""The Turnwire server: sessions over persistent connections."""
