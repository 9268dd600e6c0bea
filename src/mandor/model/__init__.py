"""The nouns: frozen, validated, no I/O."""
