"""`mandor top`: the terminal dashboard; the content of its pages is computed in modules without terminal code."""
