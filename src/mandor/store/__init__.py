"""Where objects live: four verbs, several homes."""
