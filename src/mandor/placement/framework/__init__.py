"""What a plugin author sees."""
