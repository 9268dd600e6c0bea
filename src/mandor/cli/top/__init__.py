"""`mandor top`: the terminal dashboard; what it shows is decided in files that know no terminal."""
