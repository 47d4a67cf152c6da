"""How models write calls and reasoning: one streaming parser, one syntax per family."""
