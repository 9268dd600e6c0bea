"""One module a command or family of commands, imported when it is called."""
