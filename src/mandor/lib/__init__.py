"""Small tools that know nothing about clusters."""
