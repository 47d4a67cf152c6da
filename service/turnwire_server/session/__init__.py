"""The core: rules, lanes, cache, conversation, event assembly. Pure and synchronous."""
